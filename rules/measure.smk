# Train models under each configuration, and measure the time.
#
# REQUIRED INPUTS:
#   results/{experiment}/data/{dataset}/split{seed}/    the splits of the repeats
#   .escala/plans/{experiment}/…/plan.json              the runs to measure; this call writes the file
# OUTPUTS:
#   results/{experiment}/measurements.json    a row for each measured run
#   results/{experiment}/nodes-{nodes}/measurements.json   the rows of the runs on this number of nodes, if
#                                             each number of nodes has a job (jobs_by_nodes)
#   results/{experiment}/looks.json           of a session that decides when it stops: what it saw at its looks
# FURTHER OUTPUTS, in results/{experiment}/runs/{dataset}/{workload}/{strategy}/{layout}/{variant}/{network}/:
#   rep{n}/run.json        one timing run; its logs, step times and model are alongside it
#   {series}.rep{n}/run.json a run of a rung of a ladder, with the same files
#   {probe}/run.json       one probe run; a timeline has timeline.json and trace.json alongside it,
#                          data of other probes are in run.json or in ranks/*.{probe}.*
#   duplicate.rep{n}/run.json  the second run of a reference, for the noise floor
#   {probe}.rep{n}/run.json  a run of a probe with `repeats`
#
# A session is one job, which has its machine to itself. It leaves out runs that have a valid result,
# and measures the other runs together with their references, repeat after repeat. The order is drawn
# for each repeat, so the machine's drift affects all configurations equally. Rungs of ladders come
# after the repeats, in a series for each rung. Probe runs come last, except that runs of a probe with
# `repeats` are spread among the repeats. A run that fails is a result: its run.json says so, and the
# other runs go on.


rule measure:
    input:
        plan=PLANS.session_plan,
        splits=PLANS.splits_of,
    output:
        # If a session ends early, the earlier table stays.
        update("results/{experiment}/measurements.json"),
    log:
        "results/{experiment}/logs/measure.log",
    conda:
        JOBS.conda
    threads: JOBS.threads
    resources:
        nodes=JOBS.nodes,
        tasks=JOBS.tasks,
        # For the plugin: the job has several tasks, and a run starts them.
        mpi=JOBS.launcher,
        cpus_per_task=JOBS.cores_per_task,
        slurm_extra=JOBS.slurm_extra,
        # All the memory of its nodes (escala.runtime.slurm.use_environment).
        mem_mb=0,
        # A cluster's profile has one unit of it, so that two jobs never measure the same run.
        session=1,
        runtime=JOBS.minutes,
    message:
        "Measure {wildcards.experiment}"
    # Each configuration sets its numbers of threads, so the numbers of Snakemake are removed. With
    # exec the command replaces the shell, and notices when Snakemake is killed. For descriptors 8 and
    # 9 see escala.core.console.
    shell:
        """
        unset OMP_NUM_THREADS GOTO_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS \
            VECLIB_MAXIMUM_THREADS NUMEXPR_NUM_THREADS
        exec python -m escala.command measure {input.plan:q} --in-call 9>&2 \
            > >(tee -i {log:q} 8>/dev/null >&${{ESCALA_BRIEF:-1}}) 2>&1
        """


# A separate session for the runs on one number of nodes, with their references.
use rule measure as measure_on_nodes with:
    output:
        update("results/{experiment}/nodes-{nodes}/measurements.json"),
    log:
        "results/{experiment}/logs/measure-nodes-{nodes}.log",
    message:
        "Measure {wildcards.experiment} on nodes: {wildcards.nodes}"


if EXPERIMENT.settings["jobs_by_nodes"] and internals.uses_cluster(workflow):

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


# One run, with its references. The file of the run stays while the references are measured.
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
