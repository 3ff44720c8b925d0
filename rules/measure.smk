# Train models under each configuration, and measure the time.
#
# REQUIRED INPUTS:
#   results/{experiment}/data/{dataset}/split{seed}/    the splits of the repeats
#   .escala/plans/{experiment}/…/plan.json              what there is to measure; this call writes it
# OUTPUTS:
#   results/{experiment}/measurements.json    a row for each run that there is
#   results/{experiment}/nodes-{nodes}/measurements.json   the same of the runs on so many nodes, if the
#                                             experiment has a job for each number of nodes (jobs_by_nodes)
#   results/{experiment}/pilot.json           of an experiment with a `pilot`: the number of repeats that it
#                                             asks for
# FURTHER OUTPUTS, in results/{experiment}/runs/{dataset}/{workload}/{strategy}/{layout}/{variant}/{network}/:
#   rep{n}/run.json        one timing run; its logs, step times and model are alongside it
#   {series}.rep{n}/run.json one side of a rung of a ladder, the same
#   {probe}/run.json       one probe run; a timeline has timeline.json and trace.json alongside it,
#                          data of other probes are in run.json or in ranks/*.{probe}.*
#   duplicate.rep{n}/run.json  the second run of a reference, for the noise floor
#   {probe}.rep{n}/run.json  the same of a probe with `repeats`
#
# A session is one job, which has its machine to itself. It leaves out what stands, and measures the
# other runs with those that they are compared with: repeat after repeat, in an order that is drawn for
# each of them, so the machine's drift affects all configurations equally. Rungs of ladders come after
# the repeats, each a series of its own. Probe runs come last; those of a probe with `repeats` are
# spread among the repeats. A run that fails is a result: its run.json says so, and the others go on.


rule measure:
    input:
        plan=PLANS.session_plan,
        splits=PLANS.splits_of,
    output:
        # Of a session that ends early, the earlier table stays.
        update("results/{experiment}/measurements.json"),
    log:
        "results/{experiment}/logs/measure.log",
    conda:
        JOBS.conda
    threads: JOBS.threads
    resources:
        nodes=JOBS.nodes,
        tasks=JOBS.tasks,
        # For the plugin: several tasks, which a run starts itself.
        mpi=JOBS.launcher,
        cpus_per_task=JOBS.cores_per_task,
        slurm_extra=JOBS.slurm_extra,
        # All the memory of its nodes (escala.runtime.slurm.use_environment).
        mem_mb=0,
        # The profile of a cluster has one of these, so that no two jobs measure the same run.
        session=1,
        runtime=JOBS.minutes,
    message:
        "Measure {wildcards.experiment}"
    # Snakemake sets numbers of threads, which each configuration sets itself. With exec the script
    # replaces the shell, and notices when Snakemake is killed.
    shell:
        """
        unset OMP_NUM_THREADS GOTO_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS \
            VECLIB_MAXIMUM_THREADS NUMEXPR_NUM_THREADS
        exec python -m escala.command measure {input.plan:q} --in-call > >(tee -i {log:q}) 2>&1
        """


# The runs on so many nodes, and those that they are compared with, as a session of their own.
use rule measure as measure_on_nodes with:
    output:
        update("results/{experiment}/nodes-{nodes}/measurements.json"),
    log:
        "results/{experiment}/logs/measure-nodes-{nodes}.log",
    message:
        "Measure {wildcards.experiment} on nodes: {wildcards.nodes}"


if EXPERIMENT.settings["jobs_by_nodes"] and internals.jobs_on_cluster(workflow):

    ruleorder: join_measurements > measure

    rule join_measurements:
        input:
            PLANS.parts_of,
            plan=PLANS.session_plan,
        output:
            update("results/{experiment}/measurements.json"),
        log:
            "results/{experiment}/logs/measure.log",
        wildcard_constraints:
            experiment=EXPERIMENT.name,
        localrule: True
        conda:
            "../envs/train.yaml"
        message:
            "Join the tables of measurements of {wildcards.experiment}"
        shell:
            "python -m escala.command measure {input.plan:q} --table --in-call 2>&1 | tee -i {log:q}"


# One run, with those that it is compared with. Its file stays while others are measured.
use rule measure as run with:
    input:
        plan=PLANS.run_plan,
        split=split_of,
    output:
        update(f"{CONFIGURATION}/{{repeat}}/run.json"),
    log:
        f"{CONFIGURATION_LOGS}/{{repeat}}.log",
    message:
        "Measure {wildcards.workload} on {wildcards.dataset}: {wildcards.strategy} "
        "{wildcards.layout} {wildcards.variant}, {wildcards.repeat}"


use rule run as run_of_probe with:
    output:
        update(f"{CONFIGURATION}/{{instrument}}/run.json"),
    log:
        f"{CONFIGURATION_LOGS}/{{instrument}}.log",
    message:
        "Capture the {wildcards.instrument} of {wildcards.strategy} {wildcards.layout} "
        "{wildcards.variant} on {wildcards.dataset}"
