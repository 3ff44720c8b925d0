# Calibrate the cost model for an experiment, predict its configurations, and advise which to use.
#
# REQUIRED INPUTS:
#   results/{experiment}/data/{dataset}/split{seed}/dataset.json   and alongside it the arrays
# OUTPUTS:
#   results/{experiment}-calibration/measurements.json   timing and probe runs, as of any experiment
#   results/{experiment}-calibration/gradients/{dataset}/{workload}/{strategy}/{variant}.json
#   results/{experiment}/calibration.json                times of the machine and its networks
#   results/{experiment}/predictions.json                seconds per epoch of each configuration
#   results/{experiment}/plans.json                      configurations and epochs, for advice
#   results/{experiment}/advice.json, advice.md          which configuration to use
#
# No run of the experiment itself is needed. Advice takes memory and speed-ups from those that exist.
# The report shows predictions alongside what was measured, as soon as predictions.json exists.


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
        "python -m scripts.predictions {input:q} 2>&1 | tee -i {log:q}"


rule advice:
    input:
        f"results/{EXPERIMENT.name}/advice.md",
    log:
        f"results/{EXPERIMENT.name}/logs/advice.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    message:
        "Print the advice for {EXPERIMENT.name}"
    shell:
        "cat {input:q} 2>&1 | tee -i {log:q}"


rule gradients:
    input:
        first_split,
    output:
        "results/{experiment}/gradients/{dataset}/{workload}/{strategy}/{variant}.json",
    log:
        "results/{experiment}/logs/gradients/{dataset}/{workload}/{strategy}/{variant}.log",
    conda:
        "../envs/train.yaml"
    params:
        code=model_code,
        training=lambda wildcards: json.dumps(model_settings(wildcards)["training"]),
        knobs=lambda wildcards: json.dumps(model_settings(wildcards)["knobs"]),
        split=subpath(input[0], parent=True),
    message:
        "Describe the gradients of {wildcards.workload} on {wildcards.dataset}"
    shell:
        """
        python -m scripts.gradients \
            --workload {wildcards.workload} \
            --strategy {wildcards.strategy} \
            --training @/dev/fd/3 \
            --knobs @/dev/fd/4 \
            --split {params.split:q} \
            --output {output:q} \
            3<<<{params.training:q} 4<<<{params.knobs:q} 2>&1 | tee -i {log:q}
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
        code=lambda wildcards: project_code(),
        sources=lambda wildcards: json.dumps(CALIBRATIONS.sources(wildcards)),
    message:
        "Make the calibration for {wildcards.experiment}"
    shell:
        """
        python -m scripts.calibrate \
            --sources @/dev/fd/3 \
            --output {output:q} \
            3<<<{params.sources:q} 2>&1 | tee -i {log:q}
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
        code=lambda wildcards: project_code(),
        configurations=lambda wildcards: json.dumps(planned(calibrating(wildcards))),
    message:
        "Predict the configurations of {wildcards.experiment}"
    shell:
        """
        python -m scripts.predictions {output:q} \
            --calibration {input.calibration:q} \
            --configurations @/dev/fd/3 \
            --datasets {input.datasets:q} \
            3<<<{params.configurations:q} 2>&1 | tee -i {log:q}
        """


rule advise:
    input:
        calibration="results/{experiment}/calibration.json",
        datasets=lambda wildcards: experiment(wildcards).dataset_files(),
    output:
        plans="results/{experiment}/plans.json",
        json="results/{experiment}/advice.json",
        markdown="results/{experiment}/advice.md",
    log:
        "results/{experiment}/logs/advise.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        code=lambda wildcards: project_code(),
        measured=measured_so_far,
        plans=lambda wildcards: json.dumps(plans(calibrating(wildcards))),
        folder=subpath(output.json, parent=True),
    message:
        "Advise on {wildcards.experiment}"
    shell:
        """
        python -m scripts.advise {params.folder:q} \
            --plans @/dev/fd/3 \
            --datasets {input.datasets:q} \
            --json {output.json:q} \
            --markdown {output.markdown:q} \
            3<<<{params.plans:q} >{log:q} 2>&1 || {{ cat {log:q} >&2; exit 1; }}
        """
