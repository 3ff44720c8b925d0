# Classify a user's own data with a trained model.
#
# REQUIRED INPUTS:
#   the file that predict.inputs names: FASTA for genomes, plain or gzipped
#   results/{experiment}/runs/…/rep{n}/run.json        the model is beside it
#   results/{experiment}/data/{dataset}/split{seed}/    the arrays it was trained on
# OUTPUTS:
#   results/{experiment}/data/{dataset}/split{seed}/familiarity.npz    content of the training rows
#   results/{experiment}/predictions/{configuration}/rep{n}/{query}.tsv
#
# No experiment requests these files: name the file you want.

PREDICTIONS = f"results/{{experiment}}/predictions/{NAMES}/{{repeat}}"


wildcard_constraints:
    query=r"[A-Za-z0-9][A-Za-z0-9_-]*",


rule familiarity:
    input:
        f"{DATA}/split{{seed}}/dataset.json",
    output:
        f"{DATA}/split{{seed}}/familiarity.npz",
    log:
        "results/{experiment}/logs/{dataset}/familiarity{seed}.log",
    conda:
        "../envs/prepare.yaml"
    params:
        code=lambda wildcards: code("scripts.familiarity", module_of(wildcards, "familiarity")),
        kind=lambda wildcards: dataset(wildcards)["kind"],
        split=subpath(input[0], parent=True),
    message:
        "Learn the training rows of {wildcards.dataset}, split {wildcards.seed}"
    shell:
        """
        python -m scripts.familiarity \
            --kind {params.kind} \
            --split {params.split:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """


rule predict:
    input:
        query=query_file,
        run=f"{CONFIGURATION}/{{repeat}}/run.json",
        familiarity=familiarity_of,
    output:
        f"{PREDICTIONS}/{{query}}.tsv",
    log:
        f"results/{{experiment}}/logs/predictions/{NAMES}/{{repeat}}/{{query}}.log",
    conda:
        "../envs/train.yaml"
    params:
        code=predicting_code,
        kind=lambda wildcards: dataset(wildcards)["kind"],
        run=subpath(input.run, parent=True),
        false_alarms=lambda wildcards: experiment(wildcards).settings["predict"]["false_alarms"],
    message:
        "Classify {wildcards.query} with {wildcards.workload} of {wildcards.dataset}"
    shell:
        """
        python -m scripts.predict \
            --kind {params.kind} \
            --workload {wildcards.workload} \
            --query {input.query:q} \
            --run {params.run:q} \
            --familiarity {input.familiarity:q} \
            --false-alarms {params.false_alarms} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """
