"""What probes record: timelines, traces, turns of collectives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import timeline_text
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.core.errors import InputError, Unavailable
from escala.probes import PROBES, timeline, with_probe_settings
from escala.probes.torch_trace import TorchTrace
from escala.programs.program import HOOK
from escala.strategies.base import TRACE
from tests.conftest import copy_project


def repair(text: str) -> list[dict]:
    """Return the events of a file with this text."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        return timeline.repair(Path(file.name))


KERNEL = "DistributedGradientTape_Allreduce/dense/kernel"
WHOLE = timeline_text(steps=2)


@settings(deadline=None)
@given(st.integers(0, len(WHOLE)))
def test_what_is_complete_before_the_break_is_kept(length):
    events = repair(WHOLE[:length])
    assert events == json.loads(WHOLE)[: len(events)]
    assert len(events) >= WHOLE[:length].count("}}") - 1


def test_an_unterminated_array_holds_as_much_as_a_closed_one():
    assert repair(timeline_text(2, closed=False)) == json.loads(WHOLE)


@pytest.mark.parametrize("text", ["", "[", "[\n", "no JSON", "\0\0"])
def test_nothing_is_an_empty_timeline(text, tmp_path):
    path = tmp_path / "timeline.raw"
    path.write_text(text)
    assert timeline.repair(path) == []
    timeline.write(path, tmp_path / "timeline.json", tmp_path / "trace.json")
    assert json.loads((tmp_path / "timeline.json").read_text()) == []


def test_phases_have_names_times_depth_and_bytes():
    phases = timeline.intervals(repair(WHOLE))
    kernel = phases[phases["tensor"] == KERNEL].head(5)
    assert list(kernel["phase"]) == [
        "NEGOTIATE_ALLREDUCE",
        "ALLREDUCE",
        "MEMCPY_IN_FUSION_BUFFER",
        "MPI_ALLREDUCE",
        "MEMCPY_OUT_FUSION_BUFFER",
    ]
    np.testing.assert_allclose(kernel["start_seconds"], [0.010, 0.011, 0.011, 0.012, 0.014])
    np.testing.assert_allclose(kernel["end_seconds"], [0.011, 0.014602, 0.012, 0.014, 0.0145])
    assert list(kernel["depth"]) == [0, 0, 1, 1, 1]
    assert kernel["bytes"].dropna().tolist() == [4000]


def test_phases_that_did_not_end_are_left_out():
    whole = timeline.intervals(repair(WHOLE))
    cut = timeline.intervals(repair(WHOLE[: WHOLE.rindex('{"ph": "E"')]))
    lost = pd.concat([whole, cut]).drop_duplicates(keep=False)
    assert lost[["phase", "depth"]].to_numpy().tolist() == [["ALLREDUCE", 0]]


def test_an_end_without_a_beginning_is_ignored():
    assert timeline.intervals([{"ph": "E", "ts": 5, "pid": 1}]).empty


def test_the_files_are_the_timeline_and_a_trace(tmp_path):
    raw = tmp_path / "raw"
    raw.write_text(timeline_text(2, closed=False)[:-40])
    timeline.write(raw, tmp_path / "timeline.json", tmp_path / "trace.json")
    events = json.loads((tmp_path / "timeline.json").read_text())
    assert events == timeline.repair(raw)
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in trace} == {0}
    threads = {e["tid"]: e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert threads == {0: "cycles", **timeline.tensors(events)}
    assert [e["args"]["name"] for e in trace if e["name"] == "process_name"] == ["rank 0"]
    cycles = [e for e in trace if e["name"] == "CYCLE_START"]
    assert [(e["ph"], e["tid"], e["ts"]) for e in cycles] == [("i", 0, 100), ("i", 0, 900)]
    complete = {(e["tid"], e["name"], e["ts"], e["dur"]) for e in trace if e["ph"] == "X"}
    phases = timeline.intervals(events)
    number = {name: thread for thread, name in threads.items()}
    assert complete == {
        (
            number[row.tensor],
            row.phase,
            round(row.start_seconds * 1e6),
            round((row.end_seconds - row.start_seconds) * 1e6),
        )
        for row in phases.itertuples()
    }
    assert not [e for e in trace if e["ph"] in "BE"]


#: In place of PyTorch: a profiler whose trace is the steps that it saw.
TORCH = """
import json
steps = []
class profiler:
    class ProfilerAction: RECORD = 1
    class profile:
        def __init__(self, schedule): self.spans = 0
        def step(self): self.spans += 1
        def start(self): self.first = len(steps)
        def stop(self): self.last = len(steps)
        def export_chrome_trace(self, path):
            with open(path, "w") as file:
                json.dump(steps[self.first : self.last], file)
"""
TRAINING = """
import sys
from escala_steps import epoch, steps
if {imports}: import torch
for number in range(2):
    for batch in steps(range(5)):
        if {imports}: torch.steps.append((number, batch))
    epoch()
"""


@pytest.mark.parametrize(
    ("asked", "rank", "imports", "recorded"),
    [
        (4, None, True, [[0, 3], [0, 4], [1, 0], [1, 1]]),
        (4, "0", True, [[0, 3], [0, 4], [1, 0], [1, 1]]),
        # Fewer than asked for, at the end of the program.
        (40, None, True, [[0, 3], [0, 4], *([1, step] for step in range(5))]),
        (4, "1", True, None),
        (4, None, False, None),
    ],
)
def test_steps_after_the_first_are_recorded_in_the_first_process(
    asked, rank, imports, recorded, tmp_path
):
    (tmp_path / "torch.py").write_text(TORCH)
    trace = tmp_path / "a:b" / "trace.json"
    trace.parent.mkdir()
    environment = os.environ | {"PYTHONPATH": f"{HOOK}:{tmp_path}", "ESCALA_STEPS": str(tmp_path)}
    environment |= {"ESCALA_TRACE": f"3:{asked}:{trace}"} | ({"RANK": rank} if rank else {})
    program = [sys.executable, "-c", TRAINING.format(imports=imports)]
    subprocess.run(program, env=environment, check=True, timeout=60)
    found = json.loads(trace.read_text()) if trace.exists() else None
    assert found == recorded
    assert sorted(trace.parent.iterdir()) == [trace] * (recorded is not None)


@pytest.mark.parametrize(("process", "left"), [(0, True), (0, False), (1, False)])
def test_a_program_without_a_trace_is_told_by_its_first_process(process, left, tmp_path):
    if left:
        (tmp_path / TRACE).write_text("[]")
    told = nullcontext()
    if process == 0 and not left:
        told = pytest.raises(Unavailable, match="no trace was left")
    with told, TorchTrace({"steps": 4}, tmp_path / "ranks").around(process, node=0):
        pass


LIGHT = """
import sys
from escala.probes import PROBES
assert all(probe.settings for probe in PROBES.values())
print(*({"tensorflow", "pandas", "horovod"} & set(sys.modules)))
"""
OWN = """
from escala.probes.base import Probe

class Own(Probe):
    settings = {}
"""


@pytest.fixture
def project(tmp_path) -> Path:
    return copy_project(tmp_path / "project")


def run(project: Path, code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env={"PYTHONPATH": str(project), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


def test_a_probe_has_the_name_of_its_file():
    assert {"clocks", "resources", "timeline"} <= set(PROBES)
    for name, probe in PROBES.items():
        assert probe.name == name
        assert "enabled" in probe.settings["properties"]


def test_declarations_are_read_without_the_libraries_of_the_ranks(project):
    done = run(project, LIGHT)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "empty.py: []: does not define exactly one probe"),
        ("from escala.probes.timeline import Timeline\n", "empty.py: []: does not define exactly"),
        (OWN, ""),
        (OWN.replace("settings", "setting"), "empty.py: does not declare `settings`"),
    ],
)
def test_a_module_without_a_whole_probe_of_its_own_is_told(project, content, told):
    (project / "escala/probes/empty.py").write_text(content)
    done = run(project, "from escala.probes import PROBES; PROBES['empty']")
    assert told in done.stderr and bool(told) == ("core.errors.InputError: " in done.stderr)


def test_a_probe_cannot_take_the_key_of_something_else():
    assert with_probe_settings({"one": {}}, {"two": {"type": "null"}}) == {
        "one": {},
        "two": {"type": "null"},
    }
    with pytest.raises(InputError, match="one"):
        with_probe_settings({"one": {}}, {"one": {}})
