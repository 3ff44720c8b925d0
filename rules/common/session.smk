# Handlers at the start and the end of a call: estimate, refusals, interrupts, lost runs.

import atexit
import json
import os
import subprocess
import sys
from contextlib import chdir

from snakemake.shell import shell

from escala.core.hardware import available_cores, available_memory
from escala.core.readable import counted
from escala.experiment.unused import idle_probes, unread_knobs
from escala.record import estimate, estimate_memory
from escala.runtime import launch, slurm
from escala.workflow import graph

SLURM_LOGS = Path(".snakemake/slurm_logs")
GRAPH = graph.Graph(run_of, named_experiment)
if workflow.is_main_process:
    GRAPH.register()


def requested_runs(needed_only):
    """Return the training runs in the graph of this call."""
    return [
        run for run, job in GRAPH.jobs(workflow.dag) if workflow.dag.needrun(job) or not needed_only
    ]


def pilots():
    """Return the experiments of this call whose number of pairs is not known yet."""
    return [
        named_experiment(job.wildcards.experiment)
        for job in workflow.dag.jobs
        if job.rule.name == "pairs" and workflow.dag.needrun(job)
    ]


def runs_to_estimate():
    """Return the runs of this call, with all that may follow its pilots."""
    following = [
        run for e in pilots() for run in e.largest.timed if run.repeat > e.settings["repeats"]
    ]
    return requested_runs(needed_only=True) + following


def print_estimate():
    """Print the estimated time of the runs of this call, and unread knobs."""
    for name in dict.fromkeys(run.experiment for run in requested_runs(needed_only=True)):
        # The variants of a calibration are made from those of its experiment.
        unread = [] if name.endswith(calibration.SUFFIX) else unread_knobs(named_experiment(name))
        for variant, knob in unread:
            print(f"{name}: variants.{variant}.{knob} is set, and no run of the variant reads it.")
        for probe in idle_probes(named_experiment(name)):
            print(f"{name}: {probe} is enabled, and applies to no run of the experiment.")
    for e in pilots():
        most = e.settings["pairs"]["at_most"]
        print(f"{e.name}: a pilot decides on the repeats; the estimates are those of {most}.")
    with chdir(WORKDIR):
        print(estimate.sentence(runs_to_estimate(), named_experiment), flush=True)
        if GRAPH.added:
            print(
                f"Of these, {counted(len(GRAPH.added), 'run')} only so that each run has its "
                "match: a run of its reference in the same repeat and session.",
                flush=True,
            )
        if again.times() and requested_runs(needed_only=True):
            print(
                "A timing run that other work disturbs is measured again, at most "
                f"{counted(again.times(), 'time')}; the estimate does not hold that.",
                flush=True,
            )
        if store.location() and store.location().exists():
            print(f"Runs in the store {store.location()} take no time.", flush=True)


def print_disk(footprints=None):
    """Print the estimated disk space of the runs of this call, and return it."""
    needed = estimate.disk(runs_to_estimate(), named_experiment, footprints)
    print(estimate.disk_sentence(needed, Path("results")), flush=True)
    return needed


def print_memory():
    """Build the models of the runs of this call, print their memory, and return their footprints."""
    runs = requested_runs(needed_only=True)
    found = estimate_memory.memory(runs, named_experiment, ROOT)
    # A dry run has an executor of its own. Only that of a cluster takes a number of jobs.
    local = workflow.resource_settings.nodes is None
    available = available_memory() if local else None
    if text := estimate_memory.sentence(found, named_experiment, available):
        print(text, flush=True)
    return found.footprints


def end_dry_run():
    if workflow.is_main_process and workflow.dryrun and getattr(workflow, "_dag", None):
        try:
            print_estimate()
            if requested_runs(needed_only=True):
                with chdir(WORKDIR):
                    print_disk(print_memory())
        except InputError as error:
            print(error, file=sys.stderr)


def estimate_or_refuse():
    """Print the estimates that need no TensorFlow, and refuse runs that do not fit on the disk."""
    try:
        print_estimate()
        with chdir(WORKDIR):
            estimate.require_disk(print_disk(), Path("results"))
    except InputError as error:
        raise WorkflowError(str(error)) from None


atexit.register(end_dry_run)


def refuse_impossible_layouts():
    for run in requested_runs(needed_only=True):
        try:
            named_experiment(run.experiment).require_cores(
                run, min(len(available_cores()), workflow.cores)
            )
            if Layout.parse(run.layout).nodes == 1:
                launch.require_host_of_allocation()
        except InputError as error:
            raise WorkflowError(str(error)) from None


def outdate_tables():
    """Let a next call make the tables of predictions that this one could not make again.

    Snakemake puts the earlier table back as if it was made from the present inputs.
    """
    for job in workflow.dag.needrun_jobs():
        if job.rule.name == "predict" and not workflow.dag.finished(job):
            table = Path(job.output[0])
            if table.exists():
                inputs = [Path(each) for each in job.input if Path(each).exists()]
                before = min(path.stat().st_mtime for path in inputs) - 1
                os.utime(table, (before, before))
                workflow.persistence.cleanup_metadata(job.output[0])


def end_local_jobs():
    """Ask the jobs on this machine to end; an executor cancels those of a cluster."""
    interrupts.end([process.pid for process in list(shell._processes.values())])


onstart:
    # By default Snakemake waits for its jobs after SIGTERM, and leaves them running after SIGHUP.
    # An interrupted job is not among the failed jobs below.
    interrupts.handle(end_local_jobs)
    if workflow.local_exec:
        refuse_impossible_layouts()
    if workflow.is_main_process and requested_runs(needed_only=True):
        estimate_or_refuse()


onerror:
    if interrupts.received() and hasattr(workflow.scheduler._executor, "run_uuid"):
        slurm.cancel(workflow.scheduler._executor.run_uuid)
    with chdir(WORKDIR):
        outdate_tables()
    # A job that ended without a result, for example after the loss of its node, is a failed run.
    with chdir(WORKDIR):
        for job in workflow.scheduler.failed if workflow.scheduler else ():
            if job.rule.name in graph.RULES:
                run = run_of(job.wildcards)
                if not Path(run.file).exists():
                    status, reason = slurm.ending(
                        job.rule.name, list(job.wildcards), SLURM_LOGS
                    )
                    call = ["--request", "@/dev/stdin", "--data", job.params.data]
                    place = named_experiment(run.experiment).largest.turn(run)
                    call += ["--output", run.file, "--turn", json.dumps({"place": place})]
                    call += ["--lost", status, f"{reason}; see {job.log[0]}"]
                    written = subprocess.run(
                        [sys.executable, "-m", "scripts.train", *call],
                        input=request(job.wildcards),
                        text=True,
                    )
                    if written.returncode:
                        print(
                            f"escala: {run.file}: it ended as {status} ({reason}), and this could "
                            f"not be written: exit code {written.returncode}, see above. The same "
                            "call again measures it",
                            file=sys.stderr,
                            flush=True,
                        )


onsuccess:
    # `rule all` makes the same check in its last job.
    names = {job.rule.name for job in workflow.dag.jobs}
    files = [run.file for run in requested_runs(needed_only="predict" in names)]
    if files and "all" not in names:
        check = [sys.executable, "-m", "scripts.check_runs", "--runs", *files]
        check += ["--page"] if "page" in names else []
        if subprocess.run(check).returncode:
            raise WorkflowError("a requested run did not end ok; see above")
    for job in workflow.dag.jobs:
        if job.rule.name == "predict":
            print(f"Predictions: {job.output[0]}", flush=True)
