# Parameters of the rules for runs: requests, cores, time limits, priorities.

import json
from math import ceil

from escala.record import again, key
from escala.runtime.layout import Layout
from escala.runtime.placement import processes_per_node
from escala.strategies import STRATEGIES
from escala.workflow.untracked import Untracked


def split_of(wildcards):
    run, e = run_of(wildcards), experiment(wildcards)
    return f"{e.split_folder(run.dataset, e.split_seed(run.dataset, run.repeat))}/dataset.json"


def request(wildcards):
    return json.dumps(experiment(wildcards).request(run_of(wildcards)))


def turn(wildcards):
    """Return what a job is told of the runs beside its own, which does not determine its result."""
    run, e = run_of(wildcards), experiment(wildcards).largest

    def told():
        # Only in this process do the jobs on this machine follow each other.
        local = workflow.local_exec and workflow.is_main_process
        return {
            "place": e.turn(run),
            "matched_with": [e.request(other) for other in e.matched_with(run)],
            "repeat": repeats_by_last_run().get(run.file, []) if local else None,
        }

    return Untracked(told)


@cache
def repeats_by_last_run():
    """Return the runs that this call measures in each repeat, by the last of them."""
    runs = [run for run in runs_to_estimate() if run.instrument is None]
    return again.by_last_run(
        runs, lambda run: named_experiment(run.experiment).largest.position(run)
    )


def timed_files(e):
    """Return the files of all timing runs of an experiment, after its pilot if it has one."""
    return measured(e).run_files() + measured(e).paired_files()


def whole_machine(wildcards):
    """Return all cores if jobs run on this machine, so that no other job runs meanwhile."""
    return workflow.cores if workflow.local_exec else cores_per_task(wildcards)


def whole_machine_for_one(wildcards):
    """Return all cores if jobs run on this machine, and otherwise those of one process."""
    variant = experiment(wildcards).settings["variants"][wildcards.variant]
    return workflow.cores if workflow.local_exec else variant["cores_per_process"]


def tasks_per_node(wildcards):
    layout = Layout.parse(wildcards.layout)
    return processes_per_node(layout, STRATEGIES[run_of(wildcards).strategy])


def cores_per_task(wildcards):
    """Return the cores of one process, which may hold several ranks."""
    variant = experiment(wildcards).settings["variants"][wildcards.variant]
    ranks = Layout.parse(wildcards.layout).processes // tasks_per_node(wildcards)
    return ranks * variant["cores_per_process"]


def several_tasks(wildcards):
    """Return the launcher of a multi-task job, or None, which leaves it to the plugin."""
    several = Layout.parse(wildcards.layout).nodes * tasks_per_node(wildcards) > 1
    return experiment(wildcards).settings["launcher"] if several else None


def slurm_extra(wildcards):
    """Return further options of sbatch: a timing run has its nodes to itself."""
    queue = experiment(wildcards).settings["queue_minutes"]
    end = [f"--deadline=now+{ceil(60 * (queue + job_minutes(wildcards)))}seconds"] if queue else []
    return " ".join(["--exclusive", f"--ntasks-per-node={tasks_per_node(wildcards)}", *end])


def run_priority(wildcards):
    """Return the priority of a run: about 1000 for the first, and less for each later one."""
    e = experiment(wildcards).largest
    position = e.position(run_of(wildcards))
    return 0 if position is None else 1000 * (1 - position / len(e.timed))


def time_limit_minutes(wildcards):
    return experiment(wildcards).settings["time_limit_minutes"]


def time_limit(wildcards):
    """Return the time limit of a run in seconds: Snakemake's resources are integers."""
    return ceil(60 * time_limit_minutes(wildcards))


def job_minutes(wildcards):
    """Return the time limit of a run's job in minutes: the run ends itself before."""
    return int(time_limit_minutes(wildcards)) + 5
