# Report runs as tables, figures and the summary.
#
# REQUIRED INPUTS:
#   results/{experiment}/runs/…/rep{n}/run.json              every timing run, including failed ones
#   results/{experiment}/runs/…/{pair}.rep{n}/run.json       the same for pairs of ladders
#   results/{experiment}/runs/…/{probe}/run.json             probe runs, with their captured data
#   results/{experiment}/data/{dataset}/split{seed}/dataset.json
#   results/{experiment}/data/{dataset}/split{seed}/test_similarity.npy, leakage.json
#   results/{experiment}/data/{dataset}/classes.csv
# OUTPUTS:
#   results/{experiment}/tables/{table}.csv                  columns as in schemas/tables/
#   results/{experiment}/figures/{figure}.svg, .png
#   results/{experiment}/figures/examples/{configuration}.{repeat}.{example}.svg, .png
#   results/{experiment}/figures/timelines/{configuration}.{part}.svg, .png
#   results/{experiment}/summary.md
#
# Tables and figures show a failed run as a gap with its name. Older measurements of a run, kept in
# sessions/ beside run.json, are read with it.


wildcard_constraints:
    figure="|".join([*FIGURES, *SOME_FIGURES]),
    part="run|allreduce",
    example="|".join(EXAMPLE_FIGURES),


rule tables:
    input:
        runs=lambda wildcards: experiment(wildcards).run_files(),
        paired=lambda wildcards: experiment(wildcards).paired_files(),
        datasets=lambda wildcards: experiment(wildcards).dataset_files(),
        classes=lambda wildcards: experiment(wildcards).class_files(),
        leakage=lambda wildcards: experiment(wildcards).leakage_files(),
        probed=lambda wildcards: experiment(wildcards).tabulated_files(),
    output:
        **{
            table: report(
                f"results/{{experiment}}/tables/{table}.csv",
                caption="../report/table.rst",
                category="Tables",
                labels={"table": table},
            )
            for table in TABLES
        },
    log:
        "results/{experiment}/logs/tables.log",
    conda:
        "../envs/report.yaml"
    params:
        code=code("scripts.tables"),
        pairs=lambda wildcards: json.dumps([vars(pair) for pair in experiment(wildcards).pairs]),
        references=lambda wildcards: json.dumps(experiment(wildcards).references),
    message:
        "Collect the runs of {wildcards.experiment} in tables"
    shell:
        """
        python -m scripts.tables \
            --runs {input.runs:q} \
            --paired {input.paired:q} \
            --pairs {params.pairs:q} \
            --references {params.references:q} \
            --datasets {input.datasets:q} \
            --classes {input.classes:q} \
            --probed {input.probed:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """


rule figure:
    input:
        lambda wildcards: table_files(experiment(wildcards)),
    output:
        report(
            "results/{experiment}/figures/{figure}.svg",
            caption="../report/figure.rst",
            category=lambda wildcards: DECLARED[wildcards.figure].category,
            labels=lambda wildcards: {"figure": wildcards.figure.replace("_", " ")},
        ),
        "results/{experiment}/figures/{figure}.png",
    log:
        "results/{experiment}/logs/figures/{figure}.log",
    conda:
        "../envs/report.yaml"
    params:
        code=lambda wildcards: code("scripts.figure", f"escala.report.figures.{wildcards.figure}"),
        caption=lambda wildcards: caption(wildcards.figure),
        tables=subpath(input[0], parent=True),
    message:
        "Draw {wildcards.figure} of {wildcards.experiment}"
    shell:
        """
        python -m scripts.figure {wildcards.figure} \
            --tables {params.tables:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """


rule example_figure:
    input:
        run=f"{CONFIGURATION}/{{repeat}}/run.json",
        dataset=tested_split,
    output:
        report(
            f"{EXAMPLE}.svg",
            caption="../report/figure.rst",
            category=lambda wildcards: DECLARED[wildcards.example].category,
            subcategory="{dataset} {workload}",
            labels={"example": "{strategy} {layout} {variant} {network} {repeat}: {example}"},
        ),
        f"{EXAMPLE}.png",
    log:
        f"results/{{experiment}}/logs/figures/examples/{EXAMPLE_NAME}.log",
    conda:
        "../envs/report.yaml"
    params:
        code=lambda wildcards: code("scripts.figure", f"escala.report.figures.{wildcards.example}"),
        caption=lambda wildcards: caption(wildcards.example),
        split=subpath(input.dataset, parent=True),
        pictures=pictures_option,
    message:
        "Draw {wildcards.example} of {wildcards.workload} on {wildcards.dataset}"
    shell:
        """
        python -m scripts.figure {wildcards.example} \
            --run {input.run:q} \
            --split {params.split:q} \
            {params.pictures:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """


rule timeline_figure:
    input:
        f"{CONFIGURATION}/timeline/run.json",
    output:
        report(
            f"{TIMELINE}.svg",
            caption="../report/timeline.rst",
            category="Timelines",
            subcategory="{dataset} {workload}",
            labels={"timeline": "{strategy} {layout} {variant} {network}: {part}"},
        ),
        f"{TIMELINE}.png",
    log:
        f"results/{{experiment}}/logs/figures/timelines/{TIMELINE_NAME}.log",
    conda:
        "../envs/report.yaml"
    params:
        code=lambda wildcards: code(
            "scripts.figure", f"escala.report.figures.timeline_{wildcards.part}"
        ),
    message:
        "Draw the timeline of {wildcards.strategy} {wildcards.layout} ({wildcards.part})"
    shell:
        """
        python -m scripts.figure timeline_{wildcards.part} \
            --run {input:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """


rule summary:
    input:
        tables=lambda wildcards: table_files(experiment(wildcards)),
        figures=lambda wildcards: drawn_files(experiment(wildcards)),
    output:
        report(
            "results/{experiment}/summary.md",
            caption="../report/summary.rst",
            category="Summary",
            labels={"summary": "findings"},
        ),
    log:
        "results/{experiment}/logs/summary.log",
    conda:
        "../envs/report.yaml"
    params:
        code=code("scripts.summary"),
        title=lambda wildcards: experiment(wildcards).title,
        tables=subpath(input[0], parent=True),
    message:
        "Write the summary of {wildcards.experiment}"
    shell:
        """
        python -m scripts.summary \
            --experiment {wildcards.experiment} \
            --title {params.title:q} \
            --tables {params.tables:q} \
            --files {input.figures:q} {input.tables:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """


rule ratios:
    input:
        table_files(EXPERIMENT),
    log:
        f"results/{EXPERIMENT.name}/logs/ratios.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        tables=subpath(input[0], parent=True),
    message:
        "Print the ratios of {params.tables}"
    shell:
        "python -m scripts.ratios --tables {params.tables:q} 2>&1 | tee -i {log:q}"


rule retry:
    log:
        f"results/{EXPERIMENT.name}/logs/retry.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        folder=f"results/{EXPERIMENT.name}",
    message:
        "Remove the failed runs of {params.folder}"
    shell:
        "python -m scripts.retry {params.folder:q} 2>&1 | tee -i {log:q}"
