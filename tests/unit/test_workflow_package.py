"""What the rules call: names of runs, resources of jobs, and Snakemake's insides."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from snakemake import cli
from snakemake.api import SnakemakeApi
from snakemake.exceptions import WorkflowError
from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

from escala.workflow import internals, reports
from escala.workflow.internals import DAG, JobScheduler, shell
from escala.workflow.study import Study
from escala.workflow.training import Training
from tests.conftest import ROOT

NAMES = {
    "experiment": "demo",
    "dataset": "demo-1000",
    "workload": "virus-cnn",
    "strategy": "horovod-mpi",
    "layout": "1x2",
    "variant": "tuned",
    "network": "native",
    "repeat": "rep2",
}


def wildcards(**changes: str) -> SimpleNamespace:
    return SimpleNamespace(**NAMES | changes)


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(ROOT, ROOT, [], {"queue_minutes": 10, "time_limit_minutes": 20, "memory_gib": 2})


def test_wildcards_name_a_run_with_its_split(study):
    run = study.run(wildcards())
    assert (run.file.partition("/runs/")[2], run.repeat) == (
        "demo-1000/virus-cnn/horovod-mpi/1x2/tuned/native/rep2/run.json", 2,
    )  # fmt: skip
    assert study.run(wildcards(repeat="", instrument="clocks.rep1")).instrument == "clocks"
    assert study.split(wildcards()) == "results/demo/data/demo-1000/split4/dataset.json"


def test_what_an_experiment_does_not_hold_is_named(study):
    for changes, named in (
        ({"dataset": "other"}, "no dataset other; there are demo-1000"),
        ({"experiment": "nowhere"}, "nowhere"),
    ):
        with pytest.raises(WorkflowError, match=named):
            study.dataset(wildcards(**changes))
    with pytest.raises(WorkflowError, match="9x9"):
        study.run(wildcards(layout="9x9"))


def test_the_configfile_of_a_call_is_the_default_experiment(tmp_path):
    settings = yaml.safe_load((ROOT / "config.yaml").read_text()) | {"experiment": "mine"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings))
    files = [ROOT / "config.yaml", tmp_path / "mine.yaml"]
    assert Study(ROOT, tmp_path, files, {"title": "Changed"}).default.title == "Changed"
    with pytest.raises(SystemExit, match="repeats"):
        Study(ROOT, tmp_path, files, {"repeats": 0})


def resources(study: Study, cores: int | None, **changes: str) -> dict:
    training, named = Training(study, lambda: cores, lambda: None), wildcards(**changes)
    asked = ("threads", "nodes", "tasks", "cores_per_task", "launcher", "memory_mb", "job_minutes")
    return {name: getattr(training, name)(named) for name in asked}


def test_a_run_has_the_machine_to_itself_and_on_a_cluster_its_nodes(study):
    here, there = resources(study, 8), resources(study, None)
    assert (here["threads"], there["threads"]) == (8, 1)
    assert (there["nodes"], there["tasks"], there["cores_per_task"]) == (1, 2, 1)
    assert (there["launcher"], there["memory_mb"], there["job_minutes"]) == ("auto", 4096, 25)
    one = resources(study, None, strategy="single", layout="1x1", variant="threads")
    assert (one["tasks"], one["cores_per_task"], one["launcher"]) == (1, 2, None)
    extra = Training(study, lambda: None, lambda: None).slurm_extra(wildcards())
    assert extra == "--exclusive --ntasks-per-node=2 --deadline=now+2100seconds"


def test_the_turn_of_a_run_is_told_to_its_job_and_is_no_parameter(study):
    runs = [run for run in study.default.largest.timed if run.workload == "virus-cnn"]
    training, alone = (Training(study, *calls) for calls in (
        (lambda: 2, lambda: runs), (lambda: None, lambda: None),
    ))  # fmt: skip
    told = training.turn(wildcards())
    assert type(told) not in (str, int, dict, list), "Snakemake would record it"
    said = json.loads(str(told))
    assert said["place"] == study.default.largest.turn(study.run(wildcards()))
    assert [each["strategy"] for each in said["matched_with"]]
    assert isinstance(said["repeat"], list)
    repeat = json.loads(str(alone.turn(wildcards())))["repeat"]
    assert repeat is None, "a job cannot know the others"
    first, last = (training.priority(wildcards(repeat=f"rep{number}")) for number in (1, 7))
    assert 1000 >= first > last > 0


def test_a_report_has_the_figures_of_what_was_measured(study):
    names = reports.figure_names(study.default)
    assert "speedup" in names and "ladder" not in names
    assert set(reports.tables(study.default)) <= set(reports.files(study.default))


def test_the_installed_snakemake_has_what_is_used_of_it():
    assert inspect.iscoroutinefunction(DAG.update_needrun)
    assert "create_inventory" in inspect.signature(DAG.update_needrun).parameters
    used = ("file2jobs", "update", "cleanup", "update_jobids", "needrun", "finished")
    assert all(callable(getattr(DAG, name)) for name in used)
    assert shell._processes == {} and internals.local_processes() == []
    assert list(inspect.signature(JobScheduler.job_selector).parameters) == ["self", "jobs"]
    assert inspect.iscoroutinefunction(RemoteExecutor.sleep)
    assert "self._job_submission_executor.submit(self.run_job, job)" in inspect.getsource(Executor)
    assert list(inspect.signature(SnakemakeApi.print_exception).parameters) == ["self", "ex"]
    assert "self._workflow_api._workflow_store" in inspect.getsource(SnakemakeApi)
    assert callable(cli.get_profile_dir)
    assert "--cores" in cli.get_argument_parser()._option_string_actions


def test_only_one_module_uses_the_insides_of_snakemake():
    inside = re.compile(
        r"\b_dag\b|shell\._|scheduler\._|ExecutorPluginRegistry|snakemake\.(dag|shell)"
    )
    files = [*Path(ROOT, "escala").rglob("*.py"), *Path(ROOT, "rules").rglob("*.smk")]
    found = {path.name for path in files if inside.search(path.read_text())}
    assert found == {"internals.py"}
