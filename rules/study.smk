# Write the document of a scaling study.
#
# REQUIRED INPUTS:
#   results/{experiment}/tables/scaling.csv and the other tables
#   results/{experiment}/figures, with scaling.svg
#   results/{experiment}/measurements.json
#   results/{experiment}/data/{dataset}/split{seed}/dataset.json
#   results/{experiment}/job.sh                              if `escala submit` wrote it
#   the files that `scaling.proposal` names
# OUTPUTS:
#   results/{experiment}/study.html, study.md, study.tex
#   results/{experiment}/study.pdf                           if Chromium is installed


rule study_document:
    input:
        tables=lambda wildcards: table_files(experiment(wildcards)),
        figures="results/{experiment}/figures",
        measurements=lambda wildcards: measurements_of(experiment(wildcards)),
        datasets=lambda wildcards: experiment(wildcards).dataset_files(),
        attached=lambda wildcards: study_attachments(experiment(wildcards)),
    output:
        page="results/{experiment}/study.html",
        markdown="results/{experiment}/study.md",
        latex="results/{experiment}/study.tex",
    log:
        "results/{experiment}/logs/study.log",
    conda:
        "../envs/report.yaml"
    params:
        files=files,
        job=job(
            "study_document",
            lambda wildcards: {
                "title": experiment(wildcards).title,
                "scaling": scaling_of(experiment(wildcards)),
            },
        ),
    message:
        "Write the scaling study of {wildcards.experiment}"
    shell:
        STEP


rule study:
    input:
        lambda wildcards: study_files(EXPERIMENT),
    localrule: True
    message:
        "The scaling study of {EXPERIMENT.name} is written"
