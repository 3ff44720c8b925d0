"""The level of an answer, what sessions make of it, and what is said beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from fixtures_runs import SESSION, FakeExperiment, changed, clocked
from pages import epoch_rows, failed, tabled
from sentences import told

from escala.analysis.best_use import PAYS, TIED
from escala.analysis.statistics import (
    deviation_of_sessions,
    next_time_interval,
    ratio_interval,
    sessions_interval,
)
from escala.core.files import read_json, write_json
from escala.report import tables
from escala.report.findings.context import Report
from escala.report.first_screen import all_findings, first_screen
from escala.report.history import add

pytestmark = pytest.mark.usefixtures("few_resamples")

ONE = 5.0
FASTER = (0.53, 0.54, 0.55, 0.55, 0.56, 0.57, 0.58)
EQUAL = (0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03)
SLOWER = (1.17, 1.18, 1.2, 1.2, 1.21, 1.22, 1.25)


def _measured(folder: Path, ratios: Mapping[str, Sequence[float]]) -> FakeExperiment:
    """Return one process of `ONE` s an epoch, and two of each strategy by their ratios to it."""
    experiment = FakeExperiment(folder).add_dataset()
    number = len(next(iter(ratios.values())))
    experiment.add("single", "1x1", ONE, number, rows=64)
    for strategy in ratios:
        experiment.add(strategy, "1x2", ONE, number, rows=64)
    for path in experiment.runs:
        strategy, repeat = path.parts[-6], int(path.parent.name[3:])
        run = read_json(path)
        seconds = ONE * (ratios[strategy][repeat - 1] if strategy in ratios else 1.0)
        changed([path], seconds=run["seconds"] | {"train": len(run["epochs"]) * seconds})
    return experiment


def _ends(row) -> tuple[float, float, float]:
    return row.ratio, row.ratio_low, row.ratio_high


def test_the_best_of_several_is_judged_at_a_simultaneous_level(tmp_path):
    others = ("horovod-gloo", "mirrored", "multiworker-mirrored")
    frames = tabled(_measured(tmp_path, {"horovod-mpi": FASTER, **dict.fromkeys(others, EQUAL)}))
    [answer] = Report(frames).answers
    for found, level in ((answer.fewer.row, 0.975), (frames["speedup"].iloc[0], 0.95)):
        expected = next_time_interval(
            ratio_interval(FASTER, level=level), *deviation_of_sessions([]), level
        )
        assert _ends(found) == pytest.approx(expected)


#: Ratios of two processes in earlier sessions, by the name of the session.
EARLIER = {"20251201T000000Z-1": 0.64, "20251202T000000Z-1": 0.67}


def _with_earlier(experiment: FakeExperiment, earlier: Mapping[str, float], **changes) -> None:
    """Add older sessions, in which two processes took so much of the time of one."""
    for path in experiment.runs:
        run = read_json(path)
        for session, ratio in earlier.items():
            mine = len(run["epochs"]) * ONE * (1.0 if "single" in path.parts else ratio)
            begun = datetime.strptime(session[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
            old = {"session": session, "started": begun.isoformat()}
            old |= {"seconds": run["seconds"] | {"train": mine}}
            write_json(path.parent / "sessions" / f"{session}.json", run | old | changes)


def test_three_sessions_have_an_interval_over_sessions(tmp_path):
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, EARLIER)
    frames = tabled(experiment)
    tables.write(frames, tmp_path / "tables")
    expected = sessions_interval([ratio_interval(FASTER).estimate, *EARLIER.values()])
    for table in (epoch_rows(frames), frames["best_use"]):
        (row,) = table.itertuples()
        assert _ends(row) == pytest.approx(expected) and row.verdict == "faster"
        assert (row.matches, row.sessions, row.over_sessions) == (21, 3, True)
    [answer] = Report(frames).answers
    assert answer.verdict == PAYS


def test_whole_runs_are_judged_over_the_same_sessions(tmp_path):
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, EARLIER)
    for path in (experiment.folder / "runs").rglob("*.json"):
        run = read_json(path)
        spent = run["seconds"]["train"]
        epochs = [
            epoch | {"epoch_wall_seconds": spent / len(run["epochs"])} for epoch in run["epochs"]
        ]
        write_json(path, run | {"epochs": epochs, "wall_seconds": spent + 1})
    (row,) = tabled(experiment)["best_use"].itertuples()
    whole = len(epochs) * ONE + 1
    by_steps = *EARLIER.values(), ratio_interval(FASTER).estimate
    ratios = [(len(epochs) * ONE * each + 1) / whole for each in by_steps]
    assert min(ratios) < row.run_ratio < max(ratios) and row.run_verdict == "faster"
    assert row.faster_from_epochs == 1


def test_sessions_that_differ_leave_it_open(tmp_path):
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, dict(zip(EARLIER, (1.1, 0.9), strict=True)))
    frames = tabled(experiment)
    [answer] = Report(frames).answers
    assert (answer.verdict, answer.thriftiest) == (TIED, "single 1x1")
    assert told(frames, "next")[0].startswith("Train with `single 1x1`:")


@pytest.mark.parametrize(
    ("earlier", "changes"),
    [
        (list(EARLIER)[:1], {}),
        (EARLIER, {"versions": {"tensorflow": "1.0"}}),
        (EARLIER, {"source_sha256": "1" * 64}),
        # The second of these sessions begins within an hour of the first.
        (("20251231T180000Z-1", "20251231T184500Z-1"), {}),
        # It begins half an hour after the end of the first.
        (("20251231T160000Z-1", "20251231T173000Z-1"), {"wall_seconds": 3600.0}),
    ],
)
def test_two_sessions_or_others_that_are_not_comparable_are_not_over_sessions(
    tmp_path, earlier, changes
):
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, dict.fromkeys(earlier, 0.56), **changes)
    (row,) = epoch_rows(tabled(experiment)).itertuples()
    assert (row.matches, row.sessions, row.over_sessions) == (7, 1, False)
    inside = ratio_interval(FASTER)
    assert row.ratio == pytest.approx(inside.estimate)
    assert row.ratio_low < inside.low and row.ratio_high > inside.high


def test_a_session_of_a_few_matches_does_not_count_over_sessions(tmp_path):
    """Two runs were measured again later: their matches are a session, which says little."""
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, EARLIER)
    later = [path for path in experiment.runs if path.parent.name in ("rep1", "rep2")]
    changed(later, session="20260301T000000Z-1", started="2026-03-01T00:00:00+00:00")
    (row,) = epoch_rows(tabled(experiment)).itertuples()
    assert (row.matches, row.sessions, row.over_sessions) == (21, 3, True)


def test_a_run_whose_call_ended_before_its_reference_keeps_its_older_match(tmp_path):
    """So the next call measures nothing for it, as `escala.measure.standing` counts."""
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    [alone] = [path for path in experiment.runs if {"rep3", "1x2"} <= {*path.parts}]
    changed([alone], session="20260301T000000Z-1")
    (row,) = epoch_rows(tabled(experiment)).itertuples()
    assert (row.matches, row.sessions) == (7, 1) and pd.isna(row.reason)


def test_sessions_of_the_history_count_and_each_counts_once(tmp_path):
    history = tmp_path / "history"
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, EARLIER)
    add(history, [experiment.folder])
    files = sorted(history.glob("*.parquet"))
    assert {path.name.partition(".")[0] for path in files} == {SESSION, *EARLIER}
    with_both = epoch_rows(tabled(experiment, history_files=files))
    for path in experiment.runs:
        for session in EARLIER:
            (path.parent / "sessions" / f"{session}.json").unlink()
    assert epoch_rows(tabled(experiment))["over_sessions"].tolist() == [False]
    from_history = epoch_rows(tabled(experiment, history_files=files))
    assert from_history["sessions"].tolist() == [3]
    pd.testing.assert_frame_equal(with_both, from_history)
    # Another code is another measurement.
    changed(experiment.runs, source_sha256="1" * 64)
    assert not epoch_rows(tabled(experiment, history_files=files))["over_sessions"].any()


@pytest.mark.parametrize(
    ("slow", "fast", "best"),
    [((5.0, 2.5), (1.0, 0.7), "horovod-mpi"), ((5.0, 2.5), (1.0, 1.3), "single")],
)
def test_the_least_time_decides_and_not_the_smallest_ratio(tmp_path, slow, fast, best):
    """Each variant has one process and two; the seconds are of both."""
    experiment = FakeExperiment(tmp_path).add_dataset()
    for variant, (one, two) in {"slow": slow, "fast": fast}.items():
        experiment.add("single", "1x1", one, 7, variant=variant, rows=64)
        experiment.add("horovod-mpi", "1x2", two, 7, variant=variant, rows=64)
    [answer] = Report(tabled(experiment)).answers
    assert (answer.names[2], answer.names[4]) == (best, "fast")


def test_failed_runs_are_to_be_repeated(tmp_path):
    first, *_ = told(failed(tmp_path), "next")
    assert "remove what prevented it, and run `uv run escala retry results/demo`" in first


@pytest.mark.parametrize("strategy", ["torch-single", "ddp-gloo"])
def test_engines_are_compared_by_the_quickest_of_each(tmp_path, strategy):
    """One process of TensorFlow takes less time than two."""
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", ONE, 7, rows=64)
    experiment.add("horovod-mpi", "1x2", 1.5 * ONE, 7, rows=64)
    layout = "1x1" if strategy == "torch-single" else "1x2"
    experiment.add(strategy, layout, 0.5 * ONE, 7, rows=64)
    # Without a target accuracy, another batch is another model.
    experiment.add(strategy, layout, 0.1, 7, rows=128, variant="large")
    changed(experiment.runs, training={"target_accuracy": None})
    frames = tabled(experiment)
    [answer] = Report(frames).answers
    [one] = [each for each in answer.alternatives if each.names[2] == "single"]
    [text] = [text for text in told(frames, "answer") if "TensorFlow" in text]
    names = [f"{strategy} {layout} tuned", "single 1x1 tuned"]
    assert [answer.label, one.label] == names and f"{one.ratio.value:.2f}" in text
    assert all(f"`{name}`" in text for name in names)


@pytest.mark.parametrize("question", ["energy", "engines", "links"])
def test_a_question_without_an_answer_gives_way_to_that_of_time(tmp_path, question):
    frames = tabled(_measured(tmp_path, {"horovod-mpi": FASTER}))
    found = all_findings(Report(frames, "demo"))
    asked, usual = (
        first_screen(Report(frames, "demo"), found, each) for each in (question, "time")
    )
    assert asked == usual and len(asked.answers) == 1


def test_one_engine_is_not_compared(tmp_path):
    assert "TensorFlow" not in " ".join(
        told(tabled(_measured(tmp_path, {"mirrored": EQUAL})), "answer")
    )


def test_more_repeats_do_not_replace_those_that_failed(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 5.0, 7, rows=64)
    failures = dict.fromkeys((1, 2), ("failed", "rank 1 was ended by signal 9"))
    experiment.add("horovod-mpi", "1x2", 4.0, 7, failures, rows=64)
    first, *_ = told(tabled(experiment), "next")
    assert first.startswith("For a verdict on `horovod-mpi 1x2`, run `uv run escala retry results/")


def test_what_was_not_predicted_is_named(tmp_path):
    texts = told(tabled(_measured(tmp_path, {"horovod-mpi": EQUAL})), "next")
    assert any("`predictions`" in text for text in texts)


@pytest.mark.parametrize(
    ("strategy", "ratios", "what"),
    [
        ("horovod-mpi", SLOWER, "why one process takes less time than two processes on one node"),
        ("horovod-mpi", FASTER, "why two processes on one node take less time than one process"),
        ("horovod-mpi", EQUAL, "where the time of two processes on one node goes"),
    ],
)  # fmt: skip
def test_a_reason_that_was_not_measured_is_said_to_be_none(tmp_path, strategy, ratios, what):
    """Not the start-up, which is outside the time that is compared."""
    frames = tabled(_measured(tmp_path, {strategy: ratios}))
    first, *rest = told(frames, "why")
    why = first_screen(Report(frames, "demo"), all_findings(Report(frames, "demo"))).brief["why"]
    assert why.startswith(f"Not measured: {what}")
    assert "`clocks: {enabled: true}`" in first
    assert any("outside the training steps" in text for text in rest)


def test_clocks_are_not_advised_where_the_engine_has_none(tmp_path):
    first, *_ = told(tabled(_measured(tmp_path, {"jax-gloo": FASTER})), "why")
    assert first.startswith("Not measured: why ") and "enabled: true" not in first


def test_a_reason_that_was_measured_comes_first(tmp_path):
    experiment, runs = clocked(tmp_path)
    experiment.runs = [path for path in experiment.runs if "horovod-gloo" not in path.parts]
    assert told(tabled(experiment, probe_files=runs), "why")[0].startswith("A step of ")
    changed(runs, status="failed", reason="no space left")
    texts = told(tabled(experiment, probe_files=runs), "why")
    assert texts[0].endswith("; the run with clocks has no parts: `no space left`.")
