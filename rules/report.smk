# Report runs as tables, figures, the summary and the page.
#
# REQUIRED INPUTS:
#   results/{experiment}/measurements.json                   the runs, including failed ones; each
#                                                            run.json that it names is read, with its
#                                                            captured data
#   results/{experiment}/data/{dataset}/split{seed}/dataset.json
#   results/{experiment}/data/{dataset}/split{seed}/test_similarity.npy, leakage.json
#   results/{experiment}/data/{dataset}/classes.csv
#   results/{experiment}/predictions.json                    if there are predictions
# OUTPUTS:
#   results/{experiment}/tables/{table}.csv                  columns as in schemas/tables/
#   results/{experiment}/figures/{figure}.svg
#   results/{experiment}/figures/runs/{configuration}.{measurement}.{figure}.svg
#   results/{experiment}/summary.md, index.html
#
# Tables and figures show a failed run as a gap with its name. Older measurements of a run, kept in
# sessions/ alongside run.json, are read with it.


wildcard_constraints:
    figure="|".join([*FIGURES, *SOME_FIGURES]),
    run_figure="|".join(ONE_RUN),
    measurement=REPEATS,


rule tables:
    input:
        measurements=lambda wildcards: measurements_of(experiment(wildcards)),
        datasets=lambda wildcards: experiment(wildcards).largest.dataset_files(),
        classes=lambda wildcards: experiment(wildcards).class_files(),
        leakage=lambda wildcards: experiment(wildcards).largest.leakage_files(),
        predictions=predictions_if_any,
        history=history_files(),
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
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        code=lambda wildcards: project_code(),
        rungs=lambda wildcards: json.dumps([vars(rung) for rung in experiment(wildcards).rungs]),
        references=lambda wildcards: json.dumps(experiment(wildcards).references),
        scaling=lambda wildcards: json.dumps(experiment(wildcards).settings.get("scaling")),
        probe_settings=lambda wildcards: json.dumps(experiment(wildcards).probe_settings),
        pilot=pilot_if_any,
    message:
        "Collect the runs of {wildcards.experiment} in tables"
    shell:
        """
        python -m scripts.tables \
            --measurements {input.measurements:q} \
            --rungs @/dev/fd/3 \
            --references @/dev/fd/4 \
            --probe-settings @/dev/fd/5 \
            --scaling @/dev/fd/6 \
            --datasets {input.datasets:q} \
            --classes {input.classes:q} \
            --predictions {input.predictions:q} \
            --pilot {params.pilot:q} \
            --history {input.history:q} \
            --output {output:q} \
            3<<<{params.rungs:q} 4<<<{params.references:q} \
    5<<<{params.probe_settings:q} 6<<<{params.scaling:q} 2>&1 | tee -i {log:q}
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
    log:
        "results/{experiment}/logs/figures/{figure}.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        code=lambda wildcards: project_code(),
        caption=lambda wildcards: DECLARED[wildcards.figure].caption,
        tables=subpath(input[0], parent=True),
    message:
        "Draw {wildcards.figure} of {wildcards.experiment}"
    shell:
        """
        python -m scripts.figure {wildcards.figure} \
            --tables {params.tables:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """


rule figure_of_run:
    input:
        # It names the run.
        lambda wildcards: measurements_of(experiment(wildcards)),
        dataset=tested_split,
    output:
        report(
            f"{RUN_FIGURE}.svg",
            caption="../report/figure.rst",
            category=lambda wildcards: DECLARED[wildcards.run_figure].category,
            subcategory="{dataset} {workload}",
            labels={
                "run": "{strategy} {layout} {variant} {network} {measurement}",
                "figure": lambda wildcards: wildcards.run_figure.replace("_", " "),
            },
        ),
    log:
        f"results/{{experiment}}/logs/figures/runs/{RUN_FIGURE_NAME}.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        code=lambda wildcards: project_code(),
        caption=lambda wildcards: DECLARED[wildcards.run_figure].caption,
        run=f"{CONFIGURATION}/{{measurement}}/run.json",
        rows=rows_options,
    message:
        "Draw {wildcards.run_figure} of {wildcards.strategy} {wildcards.layout} ({wildcards.dataset})"
    shell:
        """
        python -m scripts.figure {wildcards.run_figure} \
            --run {params.run:q} \
            {params.rows:q} \
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
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        code=lambda wildcards: project_code(),
        title=lambda wildcards: experiment(wildcards).title,
        question=lambda wildcards: experiment(wildcards).settings["question"],
        tables=subpath(input[0], parent=True),
    message:
        "Write the summary of {wildcards.experiment}"
    shell:
        """
        python -m scripts.summary \
            --experiment {wildcards.experiment} \
            --title={params.title:q} \
            --question {params.question} \
            --tables {params.tables:q} \
            --files {input.figures:q} {input.tables:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """


rule page:
    input:
        tables=lambda wildcards: table_files(experiment(wildcards)),
        figures=lambda wildcards: experiment_figures(experiment(wildcards)),
        run_figures=lambda wildcards: figures_of_runs(experiment(wildcards)),
    output:
        "results/{experiment}/index.html",
    log:
        "results/{experiment}/logs/page.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        code=lambda wildcards: project_code(),
        title=lambda wildcards: experiment(wildcards).title,
        question=lambda wildcards: experiment(wildcards).settings["question"],
        tables=subpath(input[0], parent=True),
        traced=lambda wildcards: traced_files(experiment(wildcards)),
    message:
        "Write the page of {wildcards.experiment}"
    shell:
        """
        python -m scripts.page \
            --experiment {wildcards.experiment} \
            --title={params.title:q} \
            --question {params.question} \
            --tables {params.tables:q} \
            --figures {input.figures:q} \
            --traced {params.traced:q} \
            --files {input.figures:q} {input.run_figures:q} {input.tables:q} \
            --output {output:q} 2>&1 | tee -i {log:q}
        """


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
