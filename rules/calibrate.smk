# Calibrate the cost model for an experiment, and predict its configurations.
#
# REQUIRED INPUTS:
#   results/{experiment}/data/{dataset}/split{seed}/dataset.json   and beside it the arrays
# OUTPUTS:
#   results/{experiment}-calibration/runs/…/run.json     timing and probe runs, as of any experiment
#   results/{experiment}-calibration/gradients/{dataset}/{workload}/{variant}.json
#   results/{experiment}/calibration.json                times of the machine and its networks
#   results/{experiment}/predictions.json                seconds per epoch of each configuration
#
# No run of the experiment itself is read. The report shows predictions beside what was measured, as
# soon as predictions.json exists.


rule calibration:
    input:
        f"results/{EXPERIMENT.name}/calibration.json",
    localrule: True
    message:
        "Calibrate the cost model for {EXPERIMENT.name}"


rule predictions:
    input:
        f"results/{EXPERIMENT.name}/predictions.json",
    log:
        f"results/{EXPERIMENT.name}/logs/predicted.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    message:
        "Print the predicted times of {EXPERIMENT.name}"
    shell:
        "python -m scripts.predicted {input:q} 2>&1 | tee -i {log:q}"


rule gradients:
    input:
        first_split,
    output:
        "results/{experiment}/gradients/{dataset}/{workload}/{variant}.json",
    log:
        "results/{experiment}/logs/gradients/{dataset}/{workload}/{variant}.log",
    conda:
        "../envs/train.yaml"
    params:
        code=lambda wildcards: code("scripts.gradients", *model_code(wildcards)),
        training=lambda wildcards: json.dumps(of_model(wildcards)["training"]),
        knobs=lambda wildcards: json.dumps(of_model(wildcards)["knobs"]),
        split=subpath(input[0], parent=True),
    message:
        "Describe the gradients of {wildcards.workload} on {wildcards.dataset}"
    shell:
        """
        python -m scripts.gradients \
            --workload {wildcards.workload} \
            --training {params.training:q} \
            --knobs {params.knobs:q} \
            --split {params.split:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """


rule calibrate:
    input:
        calibrating_files,
    output:
        "results/{experiment}/calibration.json",
    log:
        "results/{experiment}/logs/calibrate.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        code=code("scripts.calibrate"),
        sources=lambda wildcards: json.dumps(calibrating(wildcards).sources(has_links())),
    message:
        "Make the calibration for {wildcards.experiment}"
    shell:
        """
        python -m scripts.calibrate \
            --sources {params.sources:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """


rule predict_times:
    input:
        calibration="results/{experiment}/calibration.json",
        datasets=lambda wildcards: experiment(wildcards).dataset_files(),
    output:
        "results/{experiment}/predictions.json",
    log:
        "results/{experiment}/logs/predictions.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        code=code("scripts.predictions"),
        configurations=lambda wildcards: json.dumps(planned(calibrating(wildcards))),
    message:
        "Predict the configurations of {wildcards.experiment}"
    shell:
        """
        python -m scripts.predictions \
            --calibration {input.calibration:q} \
            --configurations {params.configurations:q} \
            --datasets {input.datasets:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """
