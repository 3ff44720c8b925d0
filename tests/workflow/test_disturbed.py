"""A workflow whose runs other work disturbs, and two calls on one machine."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from escala.core.files import read_json
from tests.programs import eventually, experiment_on
from tests.workflow.conftest import command, measured, write_experiment

# A busy process whose parent ends at once: children of the one that measures belong to the run.
BUSY = ["sh", "-c", "sh -c 'exec 1>&-; while :; do :; done' & echo $!"]


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


@pytest.mark.sweep
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
