from snakemake.utils import min_version

min_version("9.27")


report: "report/workflow.rst"


include: "rules/common/experiment.smk"
include: "rules/common/data.smk"
include: "rules/common/report.smk"
include: "rules/acquire.smk"
include: "rules/prepare.smk"
include: "rules/measure.smk"
include: "rules/report.smk"
include: "rules/study.smk"
include: "rules/predict.smk"
include: "rules/calibrate.smk"


# An experiment in three calls: the work before the measurement, the runs, and the report of the runs.
# On a cluster the first and the third call are for the login node, the second call is for a job.
rule prepare:
    input:
        EXPERIMENT.dataset_files(),
        EXPERIMENT.leakage_files(),
        EXPERIMENT.class_files(),
    localrule: True
    message:
        "The data of {EXPERIMENT.name} are prepared"


rule all:
    default_target: True
    input:
        report_files(EXPERIMENT),
        table=table_of(EXPERIMENT.name),
    log:
        f"results/{EXPERIMENT.name}/logs/all.log",
    localrule: True
    conda:
        "envs/report.yaml"
    params:
        files=files,
        job=job("check_runs", lambda wildcards: {"page": True}),
    message:
        "Check every run of the experiment"
    shell:
        STEP


use rule all as runs with:
    input:
        table=table_of(EXPERIMENT.name),
    log:
        f"results/{EXPERIMENT.name}/logs/runs.log",
    localrule: True
    params:
        job=job("check_runs", lambda wildcards: {"page": False}),
    message:
        "Check the runs of {EXPERIMENT.name}"


use rule all as report with:
    input:
        lambda wildcards: report_files(EXPERIMENT),
    log:
        f"results/{EXPERIMENT.name}/logs/report.log",
    localrule: True
    params:
        job=job(
            "check_runs",
            lambda wildcards: {
                "page": True,
                "table": measurements_of(EXPERIMENT),
                "all": len(until_stop(plan_session(EXPERIMENT)).runs),
            },
        ),
    message:
        "Check the runs of {EXPERIMENT.name} that are there"
