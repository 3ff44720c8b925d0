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
# No run of the experiment itself is needed. Advice takes memory and speed-ups from runs that exist.
# The report shows predictions alongside what was measured, as soon as predictions.json exists.

from escala.analysis.cost_model.works import plan_works, plans
from escala.workflow.experiments import Calibrations, times_of_tables

CALIBRATIONS = Calibrations(EXPERIMENTS, has_links)


rule calibration:
    input:
        f"results/{EXPERIMENT.name}/calibration.json",
    localrule: True
    message:
        "Calibrate the cost model for {EXPERIMENT.name}"


rule calibrate:
    input:
        files=CALIBRATIONS.files,
    output:
        calibration="results/{experiment}/calibration.json",
    log:
        "results/{experiment}/logs/calibrate.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        files=files,
        job=job("calibrate", lambda wildcards: {"sources": CALIBRATIONS.sources(wildcards)}),
    message:
        "Make the calibration for {wildcards.experiment}"
    shell:
        STEP


use rule calibrate as predict_times with:
    input:
        calibration="results/{experiment}/calibration.json",
        datasets=lambda wildcards: experiment(wildcards).dataset_files(),
    output:
        times="results/{experiment}/predictions.json",
    log:
        "results/{experiment}/logs/predictions.log",
    localrule: True
    params:
        job=job(
            "predict_times",
            lambda wildcards: {"configurations": plan_works(CALIBRATIONS.experiment(wildcards))},
        ),
    message:
        "Predict the configurations of {wildcards.experiment}"


use rule predict_times as advise with:
    output:
        plans="results/{experiment}/plans.json",
        json="results/{experiment}/advice.json",
        markdown="results/{experiment}/advice.md",
    log:
        "results/{experiment}/logs/advise.log",
    localrule: True
    params:
        measured=times_of_tables,
        job=job("advise", lambda wildcards: {"plans": plans(CALIBRATIONS.experiment(wildcards))}),
    message:
        "Advise on {wildcards.experiment}"


use rule calibrate as gradients with:
    input:
        split=CALIBRATIONS.split,
    output:
        gradients="results/{experiment}/gradients/{dataset}/{workload}/{strategy}/{variant}.json",
    log:
        "results/{experiment}/logs/gradients/{dataset}/{workload}/{strategy}/{variant}.log",
    conda:
        "../envs/train.yaml"
    params:
        job=job(
            "gradients",
            lambda wildcards: {"workload": wildcards.workload, "strategy": wildcards.strategy}
            | settings_of(CALIBRATIONS.model_settings(wildcards), "training", "knobs"),
        ),
    message:
        "Describe the gradients of {wildcards.workload} on {wildcards.dataset}"


rule predictions:
    input:
        times=f"results/{EXPERIMENT.name}/predictions.json",
    log:
        f"results/{EXPERIMENT.name}/logs/predicted.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        files=files,
        job=job("predictions"),
    message:
        "Print the predicted times of {EXPERIMENT.name}"
    shell:
        STEP


use rule predictions as advice with:
    input:
        text=f"results/{EXPERIMENT.name}/advice.md",
    log:
        f"results/{EXPERIMENT.name}/logs/advice.log",
    localrule: True
    params:
        job=job("advice"),
    message:
        "Print the advice for {EXPERIMENT.name}"
