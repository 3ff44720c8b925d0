"""What the rules call: names, resources and plans of jobs; Snakemake and frameworks kept apart."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from snakemake.exceptions import MissingRuleException, WorkflowError
from snakemake.logging import logger
from snakemake_executor_plugin_slurm import Executor

from escala.core.environment import SESSION_VARIABLE
from escala.core.errors import InputError
from escala.core.files import write_json, write_text
from escala.measure import table
from escala.measure.missing import Present
from escala.measure.plan import Plan, table_of
from escala.record.schema import FORMAT
from escala.report import products
from escala.workflow import internals
from escala.workflow.experiments import Experiments
from escala.workflow.plans import Jobs, Plans
from tests.calls import python
from tests.conftest import ROOT

NAMES = {
    "experiment": "demo", "dataset": "demo-1000", "workload": "virus-cnn",
    "strategy": "horovod-mpi", "layout": "1x2", "variant": "tuned", "network": "native",
    "repeat": "rep2",
}  # fmt: skip


def wildcards(**changes: str) -> SimpleNamespace:
    return SimpleNamespace(**NAMES | changes)


@pytest.fixture(scope="module")
def experiments() -> Experiments:
    return Experiments(
        ROOT, ROOT, [], {"queue_minutes": 10, "time_limit_minutes": 20, "memory_gib": 2}
    )


def test_wildcards_name_a_run_with_its_split(experiments):
    run = experiments.run(wildcards())
    assert (run.file.partition("/runs/")[2], run.repeat) == (
        "demo-1000/virus-cnn/horovod-mpi/1x2/tuned/native/rep2/run.json", 2,
    )  # fmt: skip
    assert experiments.run(wildcards(repeat="", instrument="clocks.rep1")).instrument == "clocks"
    assert experiments.split(wildcards()) == "results/demo/data/demo-1000/split4/dataset.json"


@pytest.mark.parametrize(
    ("part", "changes", "named"),
    [
        ("dataset", {"dataset": "other"}, "no dataset other; there are demo-1000"),
        ("dataset", {"experiment": "nowhere"}, "nowhere"),
        ("run", {"layout": "9x9"}, "9x9"),
    ],
)
def test_what_an_experiment_does_not_hold_is_named(experiments, part, changes, named):
    with pytest.raises(WorkflowError, match=named):
        getattr(experiments, part)(wildcards(**changes))


def test_the_configfile_of_a_call_is_the_default_experiment(tmp_path):
    settings = yaml.safe_load((ROOT / "config.yaml").read_text()) | {"experiment": "mine"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings))
    files = [ROOT / "config.yaml", tmp_path / "mine.yaml"]
    assert Experiments(ROOT, tmp_path, files, {"title": "Changed"}).default.title == "Changed"
    with pytest.raises(SystemExit, match="repeats"):
        Experiments(ROOT, tmp_path, files, {"repeats": 0})


def test_a_session_has_the_machine_to_itself_and_on_a_cluster_its_nodes(experiments, monkeypatch):
    monkeypatch.chdir(ROOT)

    def jobs(experiments: Experiments, cores: int | None) -> Jobs:
        return Jobs(experiments, Plans(experiments, False, lambda: False, set, set), lambda: cores)

    there, pair = jobs(experiments, None), wildcards()
    assert (jobs(experiments, 8).threads(pair), there.threads(pair)) == (8, 1)
    # A run and what it is compared with.
    assert (there.nodes(pair), there.tasks(pair), there.cores_per_task(pair)) == (1, 2, 1)
    assert there.launcher(pair) == "auto"
    extra = there.slurm_extra(pair)
    assert extra.startswith("--exclusive --ntasks-per-node=2 --deadline=now+")
    one = wildcards(strategy="single", layout="1x1", variant="threads")
    assert (there.tasks(one), there.cores_per_task(one), there.launcher(one)) == (1, 2, None)
    # It may be as long as a run may take, whatever earlier ones took.
    slow = Experiments(ROOT, ROOT, [], {"time_limit_minutes": 200})
    assert jobs(slow, None).minutes(pair) == 205


class Planned:
    """The plans of calls in a folder, and what a call finds to do by the times of their files."""

    def __init__(self, experiments: Experiments):
        self._experiments, self.session = experiments, 0
        self.provided: list[set[str]] = []

    def call(self, **names: str) -> tuple[Plans, Path, bool]:
        """Ask as a call does for the plan of a run or of an experiment; is it a new one?"""
        self.session += 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SESSION_VARIABLE, f"s{self.session}")
            plans = Plans(self._experiments, True, lambda: False, set, self.provided.append)
            given = SimpleNamespace(**names)
            asked = plans.run_plan if "workload" in names else plans.session_plan
            file = Path(asked(given))
        return plans, file, file.stat().st_mtime > 1


def measured(plan: Plan, failed: str | None = None) -> None:
    """Write all runs of a plan as if this code had measured them, one of them in vain."""
    present = Present()
    for each in plan.runs:
        record = present.identity(each) | {
            "format": FORMAT, "status": "ok", "session": "s1", "reason": None, "started": "",
            "wall_seconds": 1.0, "disturbance": None,
        }  # fmt: skip
        if each.file == failed:
            record |= {"status": "failed", "reason": "it diverged"}
        write_json(Path(each.file), {**each.run.names, **record}, durable=False)


def test_a_plan_is_new_if_and_only_if_there_is_something_to_do(experiments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    house = Planned(experiments)
    plans, file, is_new = house.call(experiment="demo")
    assert house.provided == [{"tensorflow"}], "its environment is made before"
    plan = Plan.read(file)
    assert is_new and len(plans.left) == len(plan.runs) > 20 and plan.call == "s1"
    measured(plan)
    rows = table.rows_of(plan.runs)
    # All are measured, and the table does not tell of them.
    assert house.call(experiment="demo")[2]
    write_text(table_of("demo"), table.text(plan, rows))
    plans, file, _ = house.call(experiment="demo")
    assert not plans.left and Plan.read(file).call == "s2"
    _, file, is_new = house.call(**NAMES)
    assert not is_new and len(Plan.read(file).runs) > 1
    # One that is gone is measured with what it is compared with, by either.
    run = experiments.run(wildcards())
    Path(run.file).unlink()
    plans, file, is_new = house.call(**NAMES)
    assert is_new and set(plans.left.values()) == {run, *plans.added} and plans.added
    plans, again, _ = house.call(experiment="demo")
    assert set(plans.left) == {each.file for each in Plan.read(file).runs}
    assert Plan.read(again).call == f"s{house.session}"


def test_a_job_of_a_cluster_measures_all_of_a_group_of_which_a_run_is_left(tmp_path, monkeypatch):
    configurations = [
        {"strategy": "single", "layouts": ["1x1"], "variants": ["tuned"]},
        {"strategy": "horovod-mpi", "layouts": ["1x2"], "variants": ["tuned"]},
        {"strategy": "horovod-gloo", "layouts": ["1x2"], "variants": ["tuned"]},
    ]
    alone = {"strategy": "single", "layout": "1x1", "variant": "tuned"}
    changes = {"configurations": configurations, "references": [alone]}
    monkeypatch.chdir(tmp_path)
    house = Planned(Experiments(ROOT, ROOT, [], changes))
    plan = Plan.read(house.call(experiment="demo")[1])
    measured(plan)
    Path(next(each.file for each in plan.runs if each.run.strategy == "horovod-gloo")).unlink()
    plans, *_ = house.call(experiment="demo")
    begun = {each.file for each in plans.runs_of_job(SimpleNamespace(experiment="demo"))}
    assert begun > plans.left.keys()
    groups = [{each.file for each in group} for group in plan.groups]
    assert [group for group in groups if group & begun] == [begun]


def test_the_first_job_of_targets_of_one_repeat_measures_all_of_them(
    experiments, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    plans = Plans(experiments, True, lambda: False, set, set)
    asked = [wildcards(), wildcards(strategy="single", layout="1x1")]
    runs = {experiments.run(each).file for each in asked}
    files = [Path(plans.run_plan(each)) for each in asked]
    assert all({each.file for each in Plan.read(file).runs} >= runs for file in files)
    assert all({each.file for each in plans.plan_of(given).runs} >= runs for given in asked)
    assert plans.added and not runs & {run.file for run in plans.added}


def test_a_run_that_has_failed_is_refused_as_a_target(experiments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, file, _ = Planned(experiments).call(**NAMES)
    measured(Plan.read(file), failed=experiments.run(wildcards()).file)
    with pytest.raises(SystemExit, match=r"it diverged\. To run it again: .*escala retry"):
        Planned(experiments).call(**NAMES)


def test_a_report_has_the_figures_of_what_was_measured(experiments):
    names = products.figure_names(experiments.default)
    assert "speedup" in names and "ladder" not in names
    assert set(products.tables(experiments.default)) <= set(products.files(experiments.default))


def test_the_name_of_jobs_is_what_the_executor_of_slurm_tells_once(caplog):
    assert 'self.logger.info(f"SLURM run ID: {self.run_uuid}")' in inspect.getsource(Executor)
    names = internals.watch_submissions()
    with caplog.at_level("INFO", logger.name):
        logger.info("Building DAG of jobs...")
        logger.info("SLURM run ID: escala_1f-2e")
    assert names == ["escala_1f-2e"]


@pytest.mark.parametrize("words", [["--cores"], ["nothing", "--cores", "1"]])
def test_errors_of_snakemake_are_told_in_words_of_our_own(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("Snakefile").write_text('rule made:\n    output: "made"\n    shell: "touch {output}"\n')
    told, refused = [], []

    def refuse(message, options):
        refused.append((message, {"--jobs", "--forcerun"} <= {*options}))
        raise InputError("call", None, message, "mend it")

    code = internals.call(words, lambda error, rules: told.append(error) or True, refuse)
    said = capsys.readouterr()
    assert code == 1 and "Exception:" not in said.err + said.out and len(told) == 1
    if len(words) == 1:
        assert refused == [("argument --cores/-c: expected one argument", True)]
    else:
        assert isinstance(told[0], MissingRuleException) and not refused


def test_nothing_of_snakemake_is_replaced_and_one_module_uses_its_insides():
    parts = "snakemake|cli|exceptions|logger|workflow|_workflow|scheduler|dag"
    private = rf"\b({parts})\._|^ *(cli|exceptions|logger|SnakemakeApi)\.[\w, .]+ = "
    inside = r"\b_dag\b|shell\._|scheduler\._|ExecutorPluginRegistry|snakemake\.(dag|shell)"
    files = [*Path(ROOT, "escala").rglob("*.py"), *Path(ROOT, "rules").rglob("*.smk")]
    assert not [path for path in files if re.search(private, path.read_text())]
    found = {path.name for path in files if re.search(inside, path.read_text())}
    assert found == {"internals.py"}


#: Import modules where no framework is installed, and print which ones failed.
IMPORT = """
import importlib, sys

class Refused:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("tensorflow", "keras", "horovod", "torch", "jax"):
            raise ModuleNotFoundError(f"no {name}", name=name)

sys.meta_path.insert(0, Refused())
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name, error)
"""


def test_all_but_engines_and_models_is_imported_without_a_framework():
    engines = [folder for folder in (ROOT / "escala" / "engines").iterdir() if folder.is_dir()]
    # Programs of users import the hook.
    apart = [ROOT / "escala" / "hook", *engines]
    names = []
    for file in (each for part in ("escala", "scripts") for each in (ROOT / part).rglob("*.py")):
        inside = any(file.is_relative_to(folder) for folder in apart)
        of_workload = file.parent.parent == ROOT / "escala" / "workloads"
        if not inside and not (of_workload and file.stem.startswith("model")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            names.append(".".join(part for part in parts if part != "__init__"))
    assert len(names) > 150
    done = python("-c", IMPORT, *names)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
