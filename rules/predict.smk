# Classify a user's own data with a trained model.
#
# REQUIRED INPUTS:
#   the file that predict.inputs names: FASTA for genomes, plain or gzipped
#   results/{experiment}/runs/…/rep{n}/run.json        the model is alongside it
#   results/{experiment}/data/{dataset}/split{seed}/    the arrays that the model was trained on
# OUTPUTS:
#   results/{experiment}/data/{dataset}/split{seed}/familiarity.npz    content of the training rows
#   results/{experiment}/runs/{configuration}/rep{n}/length_errors.json    how often the model is wrong about
#                                          test pieces of each length (genomes only); alongside it
#   results/{experiment}/predictions/{configuration}/rep{n}/{query}.tsv
#
# No experiment requests these files: name the file you want, or call `escala predict --run RUN FILE`.
# If a table cannot be made again, the old table stays.

PREDICTIONS = f"results/{{experiment}}/predictions/{NAMES}/{{repeat}}"


wildcard_constraints:
    query=r"[A-Za-z0-9][A-Za-z0-9_-]*",


rule familiarity:
    input:
        dataset=f"{DATA}/split{{seed}}/dataset.json",
    output:
        familiarity=f"{DATA}/split{{seed}}/familiarity.npz",
    log:
        "results/{experiment}/logs/{dataset}/familiarity{seed}.log",
    conda:
        "../envs/prepare.yaml"
    params:
        files=files,
        job=job("familiarity", lambda wildcards: {"kind": kind_with(wildcards, "familiarity")}),
    message:
        "Learn the training rows of {wildcards.dataset}, split {wildcards.seed}"
    shell:
        STEP


use rule familiarity as length_errors with:
    input:
        run=f"{CONFIGURATION}/{{repeat}}/run.json",
        split=split_of,
        familiarity=familiarity_of,
    output:
        errors=f"{CONFIGURATION}/{{repeat}}/{LENGTH_ERRORS}",
    log:
        f"results/{{experiment}}/logs/predictions/{NAMES}/{{repeat}}/length_errors.log",
    conda:
        "../envs/train.yaml"
    params:
        job=job(
            "length_errors",
            lambda wildcards: prediction_settings(wildcards, "false_alarms", part="fragments"),
        ),
    message:
        "Measure the errors of {wildcards.workload} of {wildcards.dataset} by length"


use rule length_errors as predict with:
    input:
        query=query_file,
        run=f"{CONFIGURATION}/{{repeat}}/run.json",
        familiarity=familiarity_of,
        errors=length_errors_of,
    output:
        table=update(f"{PREDICTIONS}/{{query}}.tsv"),
    log:
        f"results/{{experiment}}/logs/predictions/{NAMES}/{{repeat}}/{{query}}.log",
    params:
        job=job(
            "predict",
            lambda wildcards: prediction_settings(wildcards, "false_alarms", "error_limit"),
        ),
    message:
        "Classify {wildcards.query} with {wildcards.workload} of {wildcards.dataset}"
