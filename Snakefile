from snakemake.utils import min_version

min_version("9.0")


report: "report/workflow.rst"


include: "rules/common.smk"
include: "rules/acquire.smk"
include: "rules/prepare.smk"
include: "rules/train.smk"
include: "rules/report.smk"


rule all:
    default_target: True
    input:
        EXPERIMENT.run_files(),
        EXPERIMENT.timeline_files(),
        report_files(EXPERIMENT),
    localrule: True
    params:
        runs=EXPERIMENT.run_files() + EXPERIMENT.timeline_files(),
    message:
        "Check {EXPERIMENT.name}"
    shell:
        "python {SCRIPTS}/check_runs.py --runs {params.runs:q}"
