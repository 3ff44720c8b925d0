# The call of Snakemake: its experiments, the grammar of paths, and what happens at start and end.
# The modules of escala/workflow/ say what these names do.

import atexit
import json
import os
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

ROOT, WORKDIR = Path(workflow.basedir), Path.cwd()
sys.path.insert(0, str(ROOT))

from escala.core import environment
from escala.core.errors import InputError

# This comes before other imports, because PYTHONPATH may name foreign libraries.
try:
    environment.prepare(ROOT)
    environment.require_work_folder(WORKDIR)
except InputError as error:
    raise WorkflowError(str(error)) from None

from escala.core import interrupts
from escala.core.console import say
from escala.core.variables import PROFILE
from escala.engines import environments
from escala.measure.allocated import Allocated
from escala.measure.plan import until_stop, plan_session, table_of
from escala.probes import PROBES
from escala.runtime import allocation
from escala.workflow import internals
from escala.workflow.experiments import Experiments, refuse
from escala.workflow.lifecycle import Lifecycle
from escala.workflow.plans import Jobs, Plans

if workflow.is_main_process:
    # The name of this call of Snakemake; its jobs inherit it.
    environment.start_session()
    if any(re.fullmatch("--dry-?run|-n[a-zA-Z]*", word) for word in sys.argv[1:]):
        environments.dry_run = True
    profile = os.environ.get(PROFILE)
    if profile and not any(word.startswith("--profile") for word in sys.argv):
        say(f"{PROFILE}: the settings of {profile} hold for this call")
    # A lock must not outlive this process, whatever signal ends it.
    interrupts.handle()

internals.note(workflow)
EXPERIMENTS = Experiments(ROOT, WORKDIR, *internals.experiment_settings(workflow))
EXPERIMENT = EXPERIMENTS.default
allocation.bind_to_job()
# A job that this call submits has another allocation: the executor removes the variable.
ALLOCATED = Allocated(
    allocation.job_number() if workflow.is_main_process else None, lambda: workflow.local_exec
)


def has_links():
    """Return whether there are several nodes, whose links can be calibrated."""
    return not workflow.local_exec or bool(ALLOCATED.names)


PLANS = Plans(
    EXPERIMENTS,
    workflow.is_main_process,
    has_links,
    lambda: LIFECYCLE.rules_to_force(),
    environments.provide_all,
    lambda: internals.targets(workflow),
)
LIFECYCLE = Lifecycle(workflow, EXPERIMENTS, PLANS, ALLOCATED, WORKDIR)
JOBS = Jobs(EXPERIMENTS, PLANS, LIFECYCLE.cores)
experiment, dataset = EXPERIMENTS.experiment, EXPERIMENTS.dataset
run_of, split_of, kind_with = EXPERIMENTS.run, EXPERIMENTS.split, EXPERIMENTS.kind_with
settings_result = EXPERIMENTS.settings_result

# The name of a ladder's rung stands before the repeat: forward-2.rep1. So does the name of a probe
# with repeats: energy.rep1.
PROBE_NAMES = "|".join(PROBES)
REPEATS = rf"((?!({PROBE_NAMES})\.)[A-Za-z0-9][A-Za-z0-9_-]*\.)?rep[1-9]\d*"
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"


wildcard_constraints:
    experiment=NAME,
    dataset=NAME,
    workload=NAME,
    strategy=r"[a-z][a-z-]*",
    layout=r"[1-9]\d*x[1-9]\d*",
    variant=NAME,
    network=r"[a-z0-9]+",
    repeat=REPEATS,
    instrument=rf"({PROBE_NAMES})(\.rep[1-9]\d*)?",
    seed=r"\d+",
    nodes=r"[1-9]\d*",


# All data are prepared before anything is trained, so wrong input is reported early.
FIRST = 2000
DATA = "results/{experiment}/data/{dataset}"
NAMES = "{dataset}/{workload}/{strategy}/{layout}/{variant}/{network}"
CONFIGURATION = f"results/{{experiment}}/runs/{NAMES}"
CONFIGURATION_LOGS = f"results/{{experiment}}/logs/runs/{NAMES}"


def measurements_of(e):
    """Return an experiment's table of measurements; for a mere report, of the runs measured so far."""
    return PLANS.present_table(e) if LIFECYCLE.reports_only() else table_of(e.name)


atexit.register(LIFECYCLE.end_dry_run)


onstart:
    LIFECYCLE.start()


onerror:
    LIFECYCLE.fail()
    # Otherwise Snakemake would end as after a failed run.
    interrupts.end_if_received()


onsuccess:
    LIFECYCLE.succeed()
