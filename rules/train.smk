# Train models under each configuration, and measure the time.
#
# REQUIRED INPUTS:
#   results/{experiment}/data/{dataset}/split{seed}/    the split of the run's repeat
# OUTPUTS, in results/{experiment}/runs/{dataset}/{workload}/{strategy}/{layout}/{variant}/{network}/:
#   rep{n}/run.json        one timing run; its logs, step times and model are alongside it
#   {series}.rep{n}/run.json one side of a rung of a ladder, the same
#   {probe}/run.json       one probe run; a timeline has timeline.json and trace.json alongside it,
#                          data of other probes are in run.json or in ranks/*.{probe}.*
#   duplicate.rep{n}/run.json  the second run of a reference, for the noise floor
#   {probe}.rep{n}/run.json  the same of a probe with `repeats`
# FURTHER OUTPUT, of an experiment with a `pilot`:
#   results/{experiment}/pilot.json    the number of repeats that its pilot asks for
#
# A run that fails is a result: the rule writes run.json with its status and succeeds, so that the
# others go on. A timing run has the machine to itself. Repeats of different configurations are
# interleaved, in an order that is drawn for each repeat, so the machine's drift affects all of them
# equally. Rungs of ladders come last, each a
# series of its own in which the two sides take turns. Probe runs come after all timing runs; those of
# a probe with `repeats` are spread among them.


rule train:
    input:
        split_of,
    output:
        f"{CONFIGURATION}/{{repeat}}/run.json",
    log:
        f"{CONFIGURATION_LOGS}/{{repeat}}.log",
    priority: TRAINING.priority
    conda:
        lambda wildcards: (
            "../envs/torch.yaml"
            if engine_name(wildcards.strategy) == "torch"
            else "../envs/train.yaml"
        )
    threads: TRAINING.threads
    resources:
        nodes=TRAINING.nodes,
        tasks=TRAINING.tasks,
        # For the plugin: several tasks, which the run starts itself.
        mpi=TRAINING.launcher,
        cpus_per_task=TRAINING.cores_per_task,
        slurm_extra=TRAINING.slurm_extra,
        mem_mb=TRAINING.memory_mb,
        time_limit=TRAINING.time_limit,
        runtime=TRAINING.job_minutes,
    params:
        code=lambda wildcards: run_code(
            wildcards.workload, wildcards.strategy, run_of(wildcards).instrument
        ),
        request=TRAINING.request,
        turn=TRAINING.turn,
        data=subpath(input[0], parent=True),
    message:
        "Train {wildcards.workload} on {wildcards.dataset}: {wildcards.strategy} "
        "{wildcards.layout} {wildcards.variant}, {wildcards.repeat}"
    # A here-string may be longer than an argument. With exec the script replaces the shell, and
    # notices when Snakemake is killed.
    shell:
        """
        exec python -m scripts.train \
            --request @/dev/fd/3 \
            --turn @/dev/fd/4 \
            --data {params.data:q} \
            --time-limit {resources.time_limit} \
            --output {output:q} > >(tee -i {log:q}) 2>&1 \
            3<<<{params.request:q} 4<<<{params.turn:q}
        """


checkpoint pilot:
    input:
        runs=lambda wildcards: experiment(wildcards).run_files(),
        # So that they take turns with the runs of the pilot.
        series=lambda wildcards: experiment(wildcards).series_files(),
    output:
        "results/{experiment}/pilot.json",
    log:
        "results/{experiment}/logs/pilot.log",
    priority: FIRST
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        code=lambda wildcards: project_code(),
        references=lambda wildcards: json.dumps(experiment(wildcards).references),
        asked=lambda wildcards: json.dumps(experiment(wildcards).settings["pilot"]),
    message:
        "Compute the number of repeats of {wildcards.experiment} from its pilot"
    shell:
        """
        python -m scripts.pilot \
            --runs {input.runs:q} \
            --references @/dev/fd/3 \
            --asked @/dev/fd/4 \
            --output {output:q} \
            3<<<{params.references:q} 4<<<{params.asked:q} 2>&1 | tee -i {log:q}
        """


use rule train as instrumented with:
    output:
        f"{CONFIGURATION}/{{instrument}}/run.json",
    log:
        f"{CONFIGURATION_LOGS}/{{instrument}}.log",
    priority: TRAINING.priority
    message:
        "Capture the {wildcards.instrument} of {wildcards.strategy} {wildcards.layout} "
        "{wildcards.variant} "
        "on {wildcards.dataset}"
