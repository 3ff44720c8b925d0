from snakemake.utils import min_version

min_version("9.27")


report: "report/workflow.rst"


include: "rules/common/experiment.smk"
include: "rules/common/data.smk"
include: "rules/common/report.smk"
include: "rules/common/calibration.smk"
include: "rules/check.smk"
include: "rules/acquire.smk"
include: "rules/prepare.smk"
include: "rules/train.smk"
include: "rules/report.smk"
include: "rules/predict.smk"
include: "rules/calibrate.smk"


rule all:
    default_target: True
    input:
        lambda wildcards: timed_files(EXPERIMENT),
        EXPERIMENT.probed_files(),
        report_files(EXPERIMENT),
    log:
        f"results/{EXPERIMENT.name}/logs/all.log",
    localrule: True
    conda:
        "envs/report.yaml"
    params:
        runs=lambda wildcards: timed_files(EXPERIMENT) + EXPERIMENT.probed_files(),
    message:
        "Check every run of the experiment"
    shell:
        "python -m scripts.check_runs --page --runs {params.runs:q} 2>&1 | tee -i {log:q}"
