# What every rules file shares: the experiment asked for, the grammar of paths, and the session.
#
# An experiment is one complete file. `results/NAME/…` belongs to NAME.yaml in experiments/ or in a
# folder of it, or to config.yaml if that is the one called NAME; `--configfile FILE` makes another
# one the default.

import atexit
import json
import subprocess
import sys
from contextlib import chdir
from functools import cache
from math import ceil
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.shell import shell
from snakemake.utils import update_config

ROOT = Path(workflow.basedir)
WORKDIR = Path.cwd()
sys.path.insert(0, str(ROOT))

from escala.core import environment, interrupts
from escala.cache import store
from escala import experiment as experiments
from escala.data import kind_of
from escala.data.genomes.settings import letters_kept
from escala.data.paths import expanded_path
from escala.core.errors import InputError
from escala.report.figures import DECLARED, FIGURES, SOME_FIGURES
from escala.record import estimate, key
from escala.record.schema import read_result
from escala.runtime import slurm, slurm_executor
from escala.core.hardware import available_cores
from escala.runtime.layout import Layout
from escala.runtime.placement import processes_per_node
from escala.strategies import STRATEGIES
from escala.predict import predicting
from escala.probes import PROBES

environment.prepare(ROOT)
if workflow.is_main_process:
    # One uninterrupted series of measurements; its jobs inherit the name.
    environment.start_session()
    # A lock must not outlive this process, by whatever signal it is ended.
    interrupts.handle()
    slurm_executor.register()


def default_experiment():
    """Return the experiment of `--configfile`, or of config.yaml, with what `--config` changes."""
    path = [ROOT / "config.yaml", *workflow.config_settings.configfiles][-1]
    settings = experiments.read(path)
    if isinstance(settings, dict):
        update_config(settings, workflow.config_settings.config)
    return experiments.Experiment(settings, path)


@cache
def named_experiment(name):
    if name == EXPERIMENT.name:
        return EXPERIMENT
    try:
        return experiments.named(name, ROOT)
    except InputError as error:
        raise WorkflowError(str(error)) from None


def experiment(wildcards):
    return named_experiment(wildcards.experiment)


try:
    EXPERIMENT = default_experiment()
except InputError as error:
    raise WorkflowError(str(error)) from None


wildcard_constraints:
    experiment=r"[A-Za-z0-9][A-Za-z0-9_-]*",
    dataset=r"[A-Za-z0-9][A-Za-z0-9_-]*",
    workload=r"[A-Za-z0-9][A-Za-z0-9_-]*",
    strategy=r"[a-z][a-z-]*",
    layout=r"[1-9]\d*x[1-9]\d*",
    variant=r"[A-Za-z0-9][A-Za-z0-9_-]*",
    network=r"[a-z0-9]+",
    # Of a ladder's pair, its name comes first: forward-2.rep1.
    repeat=r"([A-Za-z0-9][A-Za-z0-9_-]*\.)?rep[1-9]\d*",
    instrument="|".join(PROBES),
    seed=r"\d+",


# All data are prepared before anything is trained: wrong input must not show after hours.
FIRST = 2000
SLURM_LOGS = Path(".snakemake/slurm_logs")
DATA = "results/{experiment}/data/{dataset}"
NAMES = "{dataset}/{workload}/{strategy}/{layout}/{variant}/{network}"
CONFIGURATION = f"results/{{experiment}}/runs/{NAMES}"
CONFIGURATION_LOGS = f"results/{{experiment}}/logs/runs/{NAMES}"
TIMELINE_NAME = "{dataset}.{workload}.{strategy}.{layout}.{variant}.{network}.{part}"
TIMELINE = f"results/{{experiment}}/figures/timelines/{TIMELINE_NAME}"
TABLES = sorted(path.name.split(".")[0] for path in (ROOT / "schemas" / "tables").iterdir())


@cache
def code(module, *chosen):
    """Return a digest of the code behind a script: a job runs again where it has changed."""
    return store.code_digest(module, chosen=chosen)


def dataset(wildcards):
    """Return a dataset's settings."""
    datasets = experiment(wildcards).datasets
    if wildcards.dataset not in datasets:
        raise WorkflowError(
            f"results/{wildcards.experiment}: no dataset {wildcards.dataset}; "
            f"there are {', '.join(datasets)}"
        )
    return datasets[wildcards.dataset]


def run_of(wildcards):
    """Return the run that a job's wildcards name, which the experiment must hold."""
    repeat = getattr(wildcards, "repeat", None)
    instrument = getattr(wildcards, "instrument", None)
    pair, _, number = (repeat or "").rpartition(".")
    try:
        return experiment(wildcards).run(
            *(wildcards[k] for k in ("dataset", "workload", "strategy", "layout", "variant")),
            wildcards.network,
            int(number.removeprefix("rep")) if repeat else None,
            instrument,
            pair or None,
        )
    except InputError as error:
        raise WorkflowError(str(error)) from None


def genomes(wildcards):
    """Return the settings of a dataset of genomes: their rules make nothing of another kind."""
    settings = dataset(wildcards)
    if settings["kind"] != "genomes":
        raise WorkflowError(
            f"datasets.{wildcards.dataset}: the kind {settings['kind']} has no such file"
        )
    return settings


def module_of(wildcards, part):
    """Return the dotted name of a module of a dataset's kind, which must have it."""
    kind = kind_of(dataset(wildcards))
    if not kind.has(part):
        raise WorkflowError(
            f"datasets.{wildcards.dataset}: the kind {kind.name} has no module {part}"
        )
    return kind.module(part)


def of_settings(wildcards, function, *arguments):
    """Return what a dataset's kind works out of its settings."""
    settings = dataset(wildcards)
    try:
        return getattr(kind_of(settings).load("settings"), function)(settings, *arguments)
    except InputError as error:
        raise WorkflowError(f"datasets.{wildcards.dataset}.{error}") from None


def source_files(wildcards):
    return of_settings(wildcards, "inputs")


def prepared_from(wildcards):
    """Return the files that a dataset's arrays are made of, by name."""
    files = of_settings(wildcards, "prepared_from", Path(DATA.format(**wildcards)))
    return {name: str(path) for name, path in files.items()}


def split_of(wildcards):
    run = run_of(wildcards)
    refuse_if_failed(run)
    e = experiment(wildcards)
    return f"{e.split_folder(run.dataset, e.split_seed(run.dataset, run.repeat))}/dataset.json"


def familiarity_of(wildcards):
    """Return what is known of the rows that a run was trained on, if its kind has a measure."""
    run, e = run_of(wildcards), experiment(wildcards)
    if not kind_of(dataset(wildcards)).has("familiarity"):
        return []
    return f"{e.split_folder(run.dataset, e.split_seed(run.dataset, run.repeat))}/familiarity.npz"


def predicting_code(wildcards):
    module_of(wildcards, "queries")
    kind = kind_of(dataset(wildcards))
    return code("scripts.predict", *predicting(kind, wildcards.workload))


def query_file(wildcards):
    """Return the file of what is to be classified."""
    inputs = experiment(wildcards).settings["predict"]["inputs"]
    if wildcards.query not in inputs:
        raise WorkflowError(
            f"{experiment(wildcards).origin}: predict.inputs names no {wildcards.query}; "
            f"add it with the path of its file"
        )
    try:
        return expanded_path(inputs[wildcards.query], f"predict.inputs.{wildcards.query}")
    except InputError as error:
        raise WorkflowError(str(error)) from None


def request(wildcards):
    return json.dumps(experiment(wildcards).request(run_of(wildcards)))


def whole_machine(wildcards):
    """Return all cores where jobs run on this machine, so that nothing else runs beside."""
    return workflow.cores if workflow.local_exec else cores_per_task(wildcards)


def tasks_per_node(wildcards):
    layout = Layout.parse(wildcards.layout)
    return processes_per_node(layout, STRATEGIES[run_of(wildcards).strategy])


def cores_per_task(wildcards):
    """Return the cores of one process, which may hold several ranks."""
    variant = experiment(wildcards).settings["variants"][wildcards.variant]
    ranks = Layout.parse(wildcards.layout).processes // tasks_per_node(wildcards)
    return ranks * variant["cores_per_process"]


def several_tasks(wildcards):
    """Say by what a job of several tasks starts them; None leaves a single one to the plugin."""
    several = Layout.parse(wildcards.layout).nodes * tasks_per_node(wildcards) > 1
    return experiment(wildcards).settings["launcher"] if several else None


def slurm_extra(wildcards):
    """Return what sbatch is told besides: a timing run has its nodes to itself."""
    queue = experiment(wildcards).settings["queue_minutes"]
    end = [f"--deadline=now+{ceil(60 * (queue + job_minutes(wildcards)))}seconds"] if queue else []
    return " ".join(["--exclusive", f"--ntasks-per-node={tasks_per_node(wildcards)}", *end])


def run_priority(wildcards):
    """Return the priority of a timing run: 1000 for the first to make, and less for each after."""
    timed = experiment(wildcards).timed
    return 1000 * (1 - timed.index(run_of(wildcards)) / len(timed))


def time_limit(wildcards):
    return experiment(wildcards).settings["time_limit_minutes"]


def job_minutes(wildcards):
    """Return the minutes that a run's job may take: the run ends by itself before."""
    return int(time_limit(wildcards)) + 5


def drawn_files(e):
    """Return the figures of an experiment, as SVG."""
    has = {
        "several nodes": any(Layout.parse(run.layout).nodes > 1 for run in e.runs),
        "ladders": bool(e.pairs),
        **{probe: bool(e.probed(probe)) for probe in PROBES},
    }
    names = [*FIGURES, *(name for name in SOME_FIGURES if has[DECLARED[name].needs])]
    return [f"results/{e.name}/figures/{figure}.svg" for figure in names] + [
        f"{TIMELINE}.svg".format(**vars(run) | {"part": part})
        for run in e.probed("timeline")
        for part in ("run", "allreduce")
    ]


def caption(figure):
    """Return the text below a figure in the report."""
    return (ROOT / "report" / "figures" / f"{figure}.rst").read_text()


def table_files(e):
    return [f"results/{e.name}/tables/{table}.csv" for table in TABLES]


def report_files(e):
    """Return all that explains the runs of an experiment."""
    return [f"results/{e.name}/summary.md", *table_files(e), *drawn_files(e)]


def requested_runs(needed_only):
    """Return the training runs in the graph of this invocation."""
    return [
        run_of(job.wildcards)
        for job in workflow.dag.jobs
        if job.rule.name in ("train", "instrumented")
        and (workflow.dag.needrun(job) or not needed_only)
    ]


def print_estimate():
    """Print the time that the runs of this invocation take, and which knobs do nothing or were renamed."""
    for name in dict.fromkeys(run.experiment for run in requested_runs(needed_only=True)):
        for warning in named_experiment(name).warnings:
            print(f"{name}: {warning}")
        for variant, knob in named_experiment(name).unread_knobs():
            print(f"{name}: variants.{variant}.{knob} is set, and no run of the variant reads it.")
    with chdir(WORKDIR):
        print(estimate.sentence(requested_runs(needed_only=True), named_experiment), flush=True)
        if store.location() and store.location().exists():
            print(f"What {store.location()} holds takes no time: it is served.", flush=True)


def end_dry_run():
    if workflow.is_main_process and workflow.dryrun and getattr(workflow, "_dag", None):
        print_estimate()


atexit.register(end_dry_run)


def refuse_if_failed(run):
    """Stop a request for one run that has failed already.

    Its run.json stands, so Snakemake would call it done: a failure must not pass for success.
    """
    targets = workflow.dag_settings.targets if workflow.is_main_process else ()
    if Path(run.file) in map(Path, targets) and Path(run.file).is_file():
        try:
            failed = read_result(Path(run.file))
        except InputError as error:
            raise WorkflowError(str(error)) from None
        if failed["status"] != "ok":
            raise WorkflowError(
                f"{run.file}: ended as {failed['status']}: {failed['reason']}. To run it again: "
                f"uv run python scripts/retry.py results/{run.experiment}, then this target"
            )


def refuse_impossible_layouts():
    for run in requested_runs(needed_only=True):
        try:
            named_experiment(run.experiment).require_cores(
                run, min(len(available_cores()), workflow.cores)
            )
        except InputError as error:
            raise WorkflowError(str(error)) from None


def end_local_jobs():
    """Ask the jobs that run on this machine to end; an executor cancels those of a cluster."""
    interrupts.end([process.pid for process in list(shell._processes.values())])


onstart:
    # Snakemake's own answer to SIGTERM is to wait until the jobs end by themselves, and to SIGHUP to
    # end without them. A job that is interrupted is not among the failed ones below.
    interrupts.handle(end_local_jobs)
    if workflow.local_exec:
        refuse_impossible_layouts()
    if workflow.is_main_process and requested_runs(needed_only=True):
        print_estimate()


onerror:
    if interrupts.received() and hasattr(workflow.scheduler._executor, "run_uuid"):
        slurm.cancel(workflow.scheduler._executor.run_uuid)
    # A job that ended without a result, as one whose node went away, is a failed run all the same.
    with chdir(WORKDIR):
        for job in workflow.scheduler.failed if workflow.scheduler else ():
            if job.rule.name in ("train", "instrumented"):
                run = run_of(job.wildcards)
                if not Path(run.file).exists():
                    status, reason = slurm.ending(
                        job.rule.name, list(job.wildcards), SLURM_LOGS
                    )
                    call = ["--request", request(job.wildcards), "--data", job.params.data]
                    call += [
                        "--output",
                        run.file,
                        "--lost",
                        status,
                        f"{reason}; see {job.log[0]}",
                    ]
                    subprocess.run([sys.executable, "-m", "scripts.train", *call])


onsuccess:
    # The whole experiment ends with the same check, as the last job.
    names = {job.rule.name for job in workflow.dag.jobs}
    files = [run.file for run in requested_runs(needed_only=False)]
    if files and "all" not in names:
        check = [sys.executable, "-m", "scripts.check_runs", "--runs", *files]
        if subprocess.run(check).returncode:
            raise WorkflowError("a run asked for did not end ok; see above")
