"""What probes capture of real runs, also one that is added to a copy of the project."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from escala.core.files import read_json
from tests.calls import python
from tests.conftest import CLASSES, ROOT, copy_project
from tests.folders import copied
from tests.unit.counter_trees import Growing, two_packages
from tests.workflow.forks import Forks

pytestmark = pytest.mark.cold

EPOCHS = 6
SMALL = {
    "source": {"type": "simulated", "seed": 1, "records": dict.fromkeys(CLASSES, 9)},
    "classes": CLASSES, "length": 300, "split": {"seeds": [4]},
}  # fmt: skip
EXPERIMENT = {
    "experiment": "probed",
    "title": "What probes capture",
    "repeats": 1,
    "datasets": {"small": SMALL},
    "workloads": {"virus-cnn": {"epochs": 1, "batch": {"rows": 32, "per": "global"}}},
    "variants": {"tuned": {}},
    "configurations": [{"strategy": "single", "layouts": ["1x1"]}],
    "oversubscribe": True,
    "resources": {"seconds": 0.02},
    "energy": {"seconds": 0.05, "cool_down_seconds": 1, "repeats": 1},
}
MEASURE = f"""
import sys
from pathlib import Path
from escala.experiment import load
from escala.record.run import measure

experiment = load("experiment.yaml")
for probe in sys.argv[2:]:
    [run] = experiment.instrumented(probe)
    request = experiment.request(run)
    request["training"]["epochs"] = {EPOCHS}
    outcome = measure(request, Path(sys.argv[1]), Path(run.file), 300)
    print(outcome.status, outcome.reason)
    assert outcome.status == "ok" or probe == "energy", outcome
"""


def measure(folder: Path, project: Path, split: Path, *probes: str) -> None:
    words = ["-c", MEASURE, split, *probes]
    done = python(*words, variables={"PYTHONPATH": str(project)}, cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def probed(small_split, tmp_path_factory) -> dict[str, Path]:
    """The folder of a run with each of two probes: that of `examples/`, and `resources`."""
    project = copy_project(tmp_path_factory.mktemp("probes") / "project")
    copied(project / "escala" / "probes", "memory.py")
    settings = EXPERIMENT | {"memory": {"enabled": True}}
    (project / "experiment.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    measure(project, project, small_split, "memory", "resources")
    return {file.parent.name: file.parent for file in sorted(project.rglob("*/run.json"))}


def test_a_probe_is_found_by_its_file_and_its_result_is_in_run_json(probed):
    assert set(probed) == {"memory", "resources"}
    run, other = (read_json(folder / "run.json") for folder in probed.values())
    assert (run["instrument"], run["repeat"], run["resources"]) == ("memory", None, None)
    assert (other["instrument"], other["repeat"], other["memory"]) == ("resources", None, None)


def test_two_probes_observe_the_same_training(probed):
    """The kernel's own peak is read inside the rank, and samples are taken outside it."""
    run, other = (read_json(folder / "run.json") for folder in probed.values())
    [peak], [process] = run["memory"], other["resources"]
    assert process["samples"] > 1
    assert 0.5 * peak < process["rss_bytes_max"] < 1.2 * peak
    assert process["cpu_percent_mean"] > 0
    assert run["weights_sha256"] == other["weights_sha256"]


def test_runs_with_probes_and_repeats_of_a_probe_are_targets(probed):
    folder = probed["memory"]
    project = next(parent for parent in folder.parents if (parent / "Snakefile").is_file())
    configuration = folder.parent.relative_to(project)
    options = ["--forceall", "--cores", "2", "--configfile", "experiment.yaml"]
    with Forks(project) as forks:
        targets = (configuration / name / "run.json" for name in ("memory", "energy.rep1"))
        code, said = forks.dry_run(*targets, *options, folder=project)
        assert code == 0, said
        assert "Capture the memory of single 1x1 tuned on small" in said
        assert "Capture the energy.rep1 of single 1x1" in said
        code, said = forks.dry_run(configuration / "energy.rep2/run.json", *options, folder=project)
        assert code and "is not among the runs" in said, said


def test_only_logs_and_tables_are_left_of_the_ranks(probed):
    left = {
        name: {file.name for file in (folder / "ranks").iterdir()}
        for name, folder in probed.items()
    }
    every_run = {"rank0.log", "launcher.log", "plan.json", "rank0.steps.csv"}
    assert left["memory"] == every_run
    assert left["resources"] == every_run | {"node0.resources.csv", "resources.log"}


@pytest.mark.torch
def test_probes_capture_ranks_of_pytorch_which_train_as_without_them(small_split, tmp_path):
    tree = two_packages(tmp_path / "sys")
    settings = EXPERIMENT | {
        "configurations": [{"strategy": "ddp-gloo", "layouts": ["1x2"]}],
        "references": [{"strategy": "ddp-gloo", "layout": "1x2"}],
        "energy": EXPERIMENT["energy"] | {"sysfs": str(tree.root)},
        "clocks": {"enabled": True, "repeats": 1},
        "torch-trace": {"enabled": True, "steps": 20},
    }
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    with Growing(tree):
        measure(tmp_path, ROOT, small_split, "resources", "energy", "clocks", "torch-trace")
    runs = {file.parent.name: read_json(file) for file in tmp_path.rglob("run.json")}
    assert {run["status"] for run in runs.values()} == {"ok"}
    # The processes of `resources` and `energy` have no recorder, as those of timing runs.
    assert len({run["weights_sha256"] for run in runs.values()}) == 1
    assert [each["rank"] for each in runs["resources"]["resources"]] == [0, 1]
    assert all(each["cpu_percent_mean"] > 0 for each in runs["resources"]["resources"])
    [node] = runs["energy.rep1"]["energy"]
    assert node["devices"][0]["joules"] / node["seconds"] == pytest.approx(100, rel=0.2)
    [trace] = tmp_path.rglob("trace.json")
    spans = [each["name"] for each in read_json(trace)["traceEvents"] if each["ph"] == "X"]
    # Of the first rank, and of each step what the profiler names.
    assert len([name for name in spans if name.startswith("ProfilerStep#")]) == 20
    for name in ("DistributedDataParallel.forward", "Optimizer.step#RMSprop.step"):
        assert spans.count(name) == 20
    assert any(name.startswith("gloo:all") for name in spans)


@pytest.fixture
def measure_energy(small_split, tmp_path):
    """Measure the energy of a run on a tree of counters; return its run.json and what it left."""

    def measured(tree: Path) -> tuple[dict, set[str]]:
        settings = EXPERIMENT | {"energy": EXPERIMENT["energy"] | {"sysfs": str(tree)}}
        (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        measure(tmp_path, ROOT, small_split, "energy")
        [file] = tmp_path.rglob("energy.rep1/run.json")
        return read_json(file), {each.name for each in (file.parent / "ranks").iterdir()}

    return measured


def test_the_energy_of_a_training_is_the_power_of_the_counters_times_its_seconds(
    measure_energy, tmp_path
):
    """The packages of 100 and 50 W, and their memory of 10 and 5, draw the same while idle."""
    tree = two_packages(tmp_path / "sys")
    with Growing(tree):
        run, left = measure_energy(tree.root)
    assert (run["status"], run["instrument"], run["repeat"]) == ("ok", "energy", 1)
    [node] = run["energy"]
    assert node["seconds"] == pytest.approx(run["seconds"]["train"], rel=0.5)
    watts = {"package-0": 100, "dram-0": 10, "package-1": 50, "dram-1": 5}
    assert [each["device"] for each in node["devices"]] == list(watts)
    for each in node["devices"]:
        assert each["joules"] / node["seconds"] == pytest.approx(watts[each["device"]], rel=0.2)
        assert each["idle_watts"] == pytest.approx(watts[each["device"]], rel=0.2)
        assert each["used"] and each["samples"] > 1
    assert "node0.energy.csv" in left and not any(name.endswith(".pid") for name in left)


def test_without_counters_or_with_one_that_stands_still_a_run_is_unavailable(
    measure_energy, tmp_path
):
    """That one stands still is found only after the training."""
    run, _ = measure_energy(tmp_path / "empty")
    assert (run["status"], run["energy"], run["epochs"]) == ("unavailable", None, [])
    assert "this node has no energy counters" in run["reason"]
    run, _ = measure_energy(two_packages(tmp_path / "sys").root)
    assert (run["status"], run["energy"]) == ("unavailable", None)
    assert run["reason"] == "node 0: package-0: its counter did not grow"
