"""A workflow whose runs other work disturbs, and two calls on one machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest

from escala.core.files import read_json
from tests.programs import eventually, experiment_on
from tests.workflow.conftest import SIMULATED, command, experiment_of, measured, write_experiment

# The first and the third measurement are called disturbed, and no other.
DISTURBING = """
from pathlib import Path
from escala.record import disturbance as module

real, module.SLOWDOWN = module.disturbance, float("inf")

def pretended(processes):
    counted = Path({count!r})
    number = len(counted.read_text()) if counted.exists() else 0
    counted.write_text("x" * (number + 1))
    disturbed = number in (0, 2)
    reason = "0.97 core of other processes" if disturbed else None
    return real(processes) | {{"disturbed": disturbed, "reason": reason}}

module.disturbance = pretended
"""
# A busy process whose parent ends at once: children of the one that measures belong to the run.
BUSY = ["sh", "-c", "sh -c 'exec 1>&-; while :; do :; done' & echo $!"]


def small() -> dict:
    return experiment_of(
        "small",
        SIMULATED,
        configurations=[
            {"strategy": "single", "layouts": ["1x1"]},
            {"strategy": "horovod-gloo", "layouts": ["1x2"]},
        ],
    )


def target(strategy: str, layout: str) -> str:
    return f"results/small/runs/small/virus-cnn/{strategy}/{layout}/tuned/native/rep1/run.json"


TARGETS = target("single", "1x1"), target("horovod-gloo", "1x2")


def test_a_disturbed_repeat_is_measured_again_whole_and_stored_as_it_stands(
    snakemake, imported, tmp_path
):
    count = tmp_path / "count"
    imported(DISTURBING.format(count=str(count)))
    again = {"ESCALA_MEASURE_DISTURBED": "2", "ESCALA_WAIT_FOR_QUIET": "0"}
    again["ESCALA_STORE"] = str(tmp_path / "store")
    done = snakemake(*TARGETS, experiment=small(), **again)
    said = done.stdout + done.stderr
    # Three attempts, each of both runs.
    assert len(count.read_text()) == 6
    assert "measured again because other work disturbed their repeat: 2 runs" in said.lower()
    runs = [read_json(tmp_path / each) for each in TARGETS]
    first, last = sorted(runs, key=lambda run: run["started"])
    attempts = [[*run["disturbance"]["earlier"], run["disturbance"]] for run in (first, last)]
    assert [each["disturbed"] for each in attempts[0]] == [True, True, False]
    assert [each["disturbed"] for each in attempts[1]] == [False] * 3
    begins = [[e["started"] for e in run["disturbance"]["earlier"]] for run in (first, last)]
    every = [*begins[0], first["started"]], [*begins[1], last["started"]]
    # In the same order in each attempt, and one attempt after the other.
    assert (order := [one for both in zip(*every, strict=True) for one in both]) == sorted(order)
    assert first["session"] == last["session"]
    for name, run in zip(TARGETS, runs, strict=True):
        folder = (tmp_path / name).parent
        assert read_json(folder / f"sessions/{run['session']}.json") == run
        assert sorted(each.name for each in folder.iterdir()) == [
            "predictions.npy", "ranks", "run.json", "sessions",
        ]  # fmt: skip
        # The cores are timed before and after each run.
        kernel = run["disturbance"]["kernel"]
        assert len(kernel["before_ms"]) == len(kernel["after_ms"]) == len(kernel["cores"])
        assert kernel["usual_ms"] and kernel["slowdown"] > 0
    # A second folder would be served both runs of the last attempt, and measure nothing.
    for name in TARGETS:
        shutil.rmtree((tmp_path / name).parent)
    snakemake(*TARGETS, experiment=small(), ESCALA_MEASURE_AGAIN="0", **again)
    assert len(count.read_text()) == 6
    for name, run in zip(TARGETS, runs, strict=True):
        assert read_json(tmp_path / name) == run
        assert read_json((tmp_path / name).parent / f"sessions/{run['session']}.json") == run


@pytest.mark.usefixtures("cold")
def test_a_busy_process_beside_a_run_is_found(small_split, request_for, tmp_path):
    busy = int(subprocess.run(BUSY, stdout=subprocess.PIPE, check=True).stdout)
    try:
        wanted = request_for("single", "1x1", workload="kmer-logreg")
        found = measured(wanted, small_split, tmp_path)["disturbance"]
    finally:
        os.kill(busy, signal.SIGKILL)
    assert found["disturbed"] and "core of other processes" in found["reason"]
    [node] = found["nodes"]
    assert node["foreign_cores"] > 0.2 and node["own_cores"] > 0.1


@pytest.mark.alone
@pytest.mark.usefixtures("cold")
def test_neighbours_of_the_experiment_are_the_run_s_own(small_split, request_for, tmp_path):
    """Beside the same run, they make more than its own cores busy, and none of that is foreign."""
    asked = request_for("single", "1x1", epochs=15, knobs={"busy_neighbours": [0, 0]})
    run = measured(asked, small_split, tmp_path)
    [node], rank = run["disturbance"]["nodes"], run["ranks"]["cores"][0]
    # With two neighbours on its core, the rank itself has about a third of it.
    assert len(rank) == 1 and node["own_cores"] > 0.6


def test_of_two_calls_the_second_waits_and_says_for_whom(tmp_path):
    """Two experiments in two folders; the first holds the machine until the second has told so."""
    first, second = folders = [tmp_path / name for name in ("first", "second")]
    waits = f"while test -e {tmp_path}/holds; do sleep 0.1; done"
    program = {"command": ["sh", "-c", waits], "directory": str(tmp_path / "code"), "files": []}
    (tmp_path / "code").mkdir()
    (tmp_path / "holds").touch()
    calls, run = [], "results/small/runs/none/waits/processes/1x1/plain/native/rep1/run.json"
    begun = (
        (first / run).with_name("ranks").exists,
        lambda: "of the experiment small, since" in (second / "said").read_text(),
    )
    try:
        for folder, has_begun in zip(folders, begun, strict=True):
            folder.mkdir()
            write_experiment(folder, experiment_on("small", {"waits": program}))
            with open(folder / "said", "w") as said:
                call = subprocess.Popen(command(folder, run), stdout=said, stderr=subprocess.STDOUT)
            calls.append(call)
            assert eventually(has_begun, seconds=120), (folder / "said").read_text()
        assert [call.poll() for call in calls] == [None, None]
    finally:
        # Whatever failed, no call is left that would keep the machine from the tests that follow.
        (tmp_path / "holds").unlink()
        codes = [call.wait(timeout=120) for call in calls]
    assert codes == [0, 0]
    runs = [read_json(folder / run) for folder in folders]
    assert runs[0]["started"] < runs[1]["started"]
