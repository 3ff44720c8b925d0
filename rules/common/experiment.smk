# The requested experiment, the grammar of paths, and the objects that wildcards stand for.
#
# An experiment is one complete file. `results/NAME/…` belongs to NAME.yaml in experiments/ or in a
# folder of it, or to config.yaml if its name is NAME. `--configfile FILE` selects another default
# experiment. Where the working directory is not the project's, its experiments/ comes first.

import sys
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import update_config

ROOT = Path(workflow.basedir)
WORKDIR = Path.cwd()
sys.path.insert(0, str(ROOT))

from escala.core import environment
from escala.core.errors import InputError

# Before other libraries are imported, because PYTHONPATH may hold foreign ones.
try:
    environment.prepare(ROOT)
except InputError as error:
    raise WorkflowError(str(error)) from None

from escala import experiment as experiments
from escala.cache import store
from escala.core import interrupts
from escala.core.files import read_json
from escala.data import kind_of
from escala.experiment import calibration
from escala.experiment.files import files_by_name
from escala.probes import PROBES
from escala.runtime import slurm_executor

if workflow.is_main_process:
    # The name of this call of Snakemake; its jobs inherit it.
    environment.start_session()
    # A lock must not outlive this process, whatever signal ends it.
    interrupts.handle()
    slurm_executor.register()


def default_experiment():
    """Return the experiment of `--configfile`, or of config.yaml, as changed by `--config`."""
    path = [ROOT / "config.yaml", *workflow.config_settings.configfiles][-1]
    settings = experiments.read(path)
    if isinstance(settings, dict):
        update_config(settings, workflow.config_settings.config)
    found = experiments.Experiment(settings, path)
    experiments.check_name(found.name, path, WORKDIR)
    return found


@cache
def named_experiment(name):
    if name == EXPERIMENT.name:
        return EXPERIMENT
    try:
        base = calibration.adopted(name)
        root = WORKDIR if name in files_by_name(WORKDIR) else ROOT
        if base is None or name in files_by_name(root):
            return experiments.named(name, root)
        return calibration.Calibration(named_experiment(base))
    except InputError as error:
        raise WorkflowError(str(error)) from None


def experiment(wildcards):
    return named_experiment(wildcards.experiment)


try:
    EXPERIMENT = default_experiment()
except InputError as error:
    raise WorkflowError(str(error)) from None


# A ladder's pair has its name before the repeat: forward-2.rep1. So has a probe with repeats, and
# then the name of the run is energy.rep1.
PROBE_NAMES = "|".join(PROBES)
REPEATS = rf"((?!({PROBE_NAMES})\.)[A-Za-z0-9][A-Za-z0-9_-]*\.)?rep[1-9]\d*"


wildcard_constraints:
    experiment=r"[A-Za-z0-9][A-Za-z0-9_-]*",
    dataset=r"[A-Za-z0-9][A-Za-z0-9_-]*",
    workload=r"[A-Za-z0-9][A-Za-z0-9_-]*",
    strategy=r"[a-z][a-z-]*",
    layout=r"[1-9]\d*x[1-9]\d*",
    variant=r"[A-Za-z0-9][A-Za-z0-9_-]*",
    network=r"[a-z0-9]+",
    repeat=REPEATS,
    instrument=rf"({PROBE_NAMES})(\.rep[1-9]\d*)?",
    seed=r"\d+",


# All data are prepared before anything is trained, so wrong input is reported early.
FIRST = 2000
DATA = "results/{experiment}/data/{dataset}"
NAMES = "{dataset}/{workload}/{strategy}/{layout}/{variant}/{network}"
CONFIGURATION = f"results/{{experiment}}/runs/{NAMES}"
CONFIGURATION_LOGS = f"results/{{experiment}}/logs/runs/{NAMES}"


@cache
def code(module, *chosen):
    """Return a digest of the code that a script reaches: if it changes, the job runs again."""
    return store.code_digest(module, chosen=chosen)


def measured(e):
    """Return an experiment with the number of repeats that follows from its pilot, if it has one."""
    if "pairs" not in e.settings:
        return e
    file = checkpoints.pairs.get(experiment=e.name).output[0]
    return e.with_repeats(read_json(Path(file))["pairs"])


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
    """Return the run that a job's wildcards name; the experiment must contain it."""
    instrument, _, repeat = getattr(wildcards, "instrument", "").partition(".")
    repeat = repeat or getattr(wildcards, "repeat", "")
    pair, _, number = repeat.rpartition(".")
    try:
        return experiment(wildcards).largest.run(
            *(wildcards[k] for k in ("dataset", "workload", "strategy", "layout", "variant")),
            wildcards.network,
            int(number.removeprefix("rep")) if repeat else None,
            instrument or None,
            pair or None,
        )
    except InputError as error:
        raise WorkflowError(str(error)) from None


def module_of(wildcards, part):
    """Return the dotted name of a module of a dataset's kind; refuse a missing one."""
    kind = kind_of(dataset(wildcards))
    if not kind.has(part):
        raise WorkflowError(
            f"datasets.{wildcards.dataset}: the kind {kind.name} has no module {part}"
        )
    return kind.module(part)


def of_settings(wildcards, function, *arguments, module="settings"):
    """Return a result of a function of a dataset's settings, in a module of its kind."""
    settings = dataset(wildcards)
    try:
        return getattr(kind_of(settings).load(module), function)(settings, *arguments)
    except InputError as error:
        refuse(f"datasets.{wildcards.dataset}.{error}")


def refuse(message):
    """End Snakemake with one message on wrong input.

    Snakemake shows any other exception of an input function with places in these files, where the
    error is not.
    """
    raise SystemExit(message)
