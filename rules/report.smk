# Report runs as tables, figures, the summary and the page.
#
# REQUIRED INPUTS:
#   results/{experiment}/measurements.json                   the runs, including failed ones; each
#                                                            run.json that it names is read, with its
#                                                            captured data
#   results/{experiment}/data/{dataset}/split{seed}/dataset.json
#   results/{experiment}/data/{dataset}/split{seed}/test_similarity.npy, leakage.json
#   results/{experiment}/predictions.json                    if there are predictions
# OUTPUTS:
#   results/{experiment}/tables/{table}.csv                  columns as in schemas/tables/
#   results/{experiment}/figures/{figure}.svg
#   results/{experiment}/run_figures/{configuration}.{measurement}.{figure}.svg
#   results/{experiment}/summary.md, index.html
#
# Tables and figures show a failed run as a gap with its name. A report also reads the
# older measurements of a run, which are in sessions/ alongside run.json.


wildcard_constraints:
    run_figure="|".join(ONE_RUN),
    measurement=REPEATS,


rule page:
    input:
        measurements=lambda wildcards: measurements_of(experiment(wildcards)),
        datasets=lambda wildcards: experiment(wildcards).dataset_files(),
        leakage=lambda wildcards: experiment(wildcards).leakage_files(),
        predictions=predictions_if_any,
        history=history_files(),
        run_figures=lambda wildcards: figures_of_runs(experiment(wildcards)),
    output:
        page="results/{experiment}/index.html",
        summary=report(
            "results/{experiment}/summary.md",
            caption="../report/summary.rst",
            category="Summary",
            labels={"summary": "findings"},
        ),
        figures=report(
            directory("results/{experiment}/figures"),
            patterns=["{figure}.svg"],
            caption="../report/figure.rst",
            category=lambda wildcards: DECLARED[wildcards.figure].category,
            labels=lambda wildcards: {"figure": wildcards.figure.replace("_", " ")},
        ),
        tables=[
            report(
                f"results/{{experiment}}/tables/{table}.csv",
                caption="../report/table.rst",
                category="Tables",
                labels={"table": table},
            )
            for table in TABLES
        ],
    log:
        "results/{experiment}/logs/page.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        captions=lambda wildcards: {name: DECLARED[name].caption for name in DECLARED},
        files=files,
        job=job("page", page_settings),
    message:
        "Report the runs of {wildcards.experiment}: tables, figures, the summary and the page"
    shell:
        STEP


rule figure_of_run:
    input:
        # The table names the run.
        lambda wildcards: measurements_of(experiment(wildcards)),
        dataset=test_split,
    output:
        figure=report(
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
        f"results/{{experiment}}/logs/run_figures/{RUN_FIGURE_NAME}.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        captions=lambda wildcards: {wildcards.run_figure: DECLARED[wildcards.run_figure].caption},
        files=files,
        job=job(
            "figure_of_run",
            lambda wildcards: {
                "figure": wildcards.run_figure,
                "run": f"{CONFIGURATION}/{{measurement}}/run.json".format(**wildcards),
                "pictures": REPORTS.pictures(wildcards),
            },
        ),
    message:
        "Draw {wildcards.run_figure} of {wildcards.strategy} {wildcards.layout} ({wildcards.dataset})"
    shell:
        STEP
