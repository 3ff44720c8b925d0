"""What probes capture of real runs, also one that is added to a copy of the project."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from escala.core.files import read_json
from escala.experiment import Experiment
from tests.calls import python
from tests.conftest import CLASSES, copy_project
from tests.folders import copied
from tests.unit.counter_trees import Growing, two_packages
from tests.workflow.conftest import dry_run_in, measured

pytestmark = pytest.mark.torch

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
    "configurations": [{"strategy": "torch-single", "layouts": ["1x1"]}],
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
    [run] = experiment.runs_under(probe)
    request = experiment.request(run)
    request["training"]["epochs"] = {EPOCHS}
    outcome = measure(request, Path(sys.argv[1]), Path(run.file), 300)
    assert outcome.status == "ok", outcome
"""


@pytest.fixture(scope="module")
def probed(small_split, tmp_path_factory) -> dict[str, Path]:
    """The folder of a run with each of two probes: that of `examples/`, and `resources`.

    No process of them is a fork, which would begin with the memory of all that the parent imports.
    """
    project = copy_project(tmp_path_factory.mktemp("probes") / "project")
    copied(project / "escala" / "probes", "memory.py")
    settings = EXPERIMENT | {"memory": {"enabled": True}}
    (project / "experiment.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    words = ["-c", MEASURE, small_split, "memory", "resources"]
    done = python(*words, variables={"PYTHONPATH": str(project)}, cwd=project)
    assert done.returncode == 0, done.stderr
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
    assert None not in (process["read_bytes_max"], process["written_bytes_max"])
    assert run["weights_sha256"] == other["weights_sha256"]


def test_runs_with_probes_and_repeats_of_a_probe_are_targets(probed):
    folder = probed["memory"]
    project = next(parent for parent in folder.parents if (parent / "Snakefile").is_file())
    configuration = folder.parent.relative_to(project)
    options = ["--forceall", "--cores", "2", "--configfile", "experiment.yaml"]
    targets = (configuration / name / "run.json" for name in ("memory", "energy.rep1"))
    code, said = dry_run_in(project, *targets, *options)
    assert code == 0, said
    assert "Capture the memory of torch-single 1x1 tuned on small" in said
    assert "Capture the energy.rep1 of torch-single 1x1" in said
    code, said = dry_run_in(project, configuration / "energy.rep2/run.json", *options)
    assert code and "is not among the runs" in said, said


def test_only_logs_and_tables_are_left_of_the_ranks(probed):
    left = {
        name: {file.name for file in (folder / "ranks").iterdir()}
        for name, folder in probed.items()
    }
    every_run = {"rank0.log", "launcher.log", "plan.json", "rank0.steps.csv"}
    assert left["memory"] == every_run
    assert left["resources"] == every_run | {"node0.resources.csv", "resources.log"}


@pytest.fixture
def measure_energy(small_split, tmp_path):
    """Measure the energy of a run on a tree of counters; return its run.json and what it left."""

    def on(tree: Path, status: str = "ok") -> tuple[dict, set[str]]:
        settings = EXPERIMENT | {"energy": EXPERIMENT["energy"] | {"sysfs": str(tree)}}
        experiment = Experiment(settings, "experiment.yaml")
        [run] = experiment.runs_under("energy")
        request = experiment.request(run)
        request["training"]["epochs"] = EPOCHS
        folder = tmp_path / run.folder
        return measured(request, small_split, folder, status), {
            each.name for each in (folder / "ranks").iterdir()
        }

    return on


def test_the_energy_of_a_training_is_the_power_of_the_counters_times_its_seconds(
    measure_energy, tmp_path
):
    """The packages of 100 and 50 W, and their memory of 10 and 5, draw the same while idle."""
    tree = two_packages(tmp_path / "sys")
    with Growing(tree):
        run, left = measure_energy(tree.root)
    assert (run["instrument"], run["repeat"]) == ("energy", 1)
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
    run, _ = measure_energy(tmp_path / "empty", "unavailable")
    assert (run["energy"], run["epochs"]) == (None, [])
    assert "this node has no energy counters" in run["reason"]
    run, _ = measure_energy(two_packages(tmp_path / "sys").root, "unavailable")
    assert run["energy"] is None
    assert run["reason"] == "node 0: package-0: its counter did not grow"
