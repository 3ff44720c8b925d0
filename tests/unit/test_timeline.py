"""Horovod's timeline: read when broken off anywhere, summed without counting twice, converted."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import timeline_text
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.probes import timeline


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
