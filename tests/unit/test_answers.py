"""The answer and the advice follow from one choice, at the level of what it is selected from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest
from escala.report.findings.verdicts import answers
from fixtures_runs import REFERENCES, SESSION, FakeExperiment, changed, clocked
from pages import failed, tabled
from sentences import told

from escala.analysis.statistics import ratio_interval, sessions_interval
from escala.core.files import read_json, write_json
from escala.report import tables
from escala.report.first_screen import all_findings, first_screen
from escala.report.history.rows import add
from escala.report.overview import overview
from escala.report.summary import summary

pytestmark = pytest.mark.usefixtures("few_resamples")

ONE = 5.0
FASTER = (0.53, 0.54, 0.55, 0.55, 0.56, 0.57, 0.58)
WIDE = (0.30, 0.32, 0.35, 0.50, 0.60, 1.05, 1.10)
EQUAL = (0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03)
SLOWER = (1.17, 1.18, 1.2, 1.2, 1.21, 1.22, 1.25)
STRATEGIES = (
    "horovod-mpi", "horovod-gloo", "mirrored", "multiworker-mirrored", "parameter-server",
)  # fmt: skip


def _timed(path: Path, seconds: float, **changes) -> None:
    epochs = len(read_json(path)["epochs"])
    changed([path], seconds=read_json(path)["seconds"] | {"train": epochs * seconds}, **changes)


def _measured(
    folder: Path, ratios: Mapping[str, Sequence[float]], threads: float | None = None
) -> FakeExperiment:
    """Return one process of `ONE` s an epoch, and two of each strategy by their ratios to it."""
    experiment = FakeExperiment(folder).add_dataset()
    number = len(next(iter(ratios.values())))
    experiment.add("single", "1x1", ONE, number, rows=64)
    if threads:
        experiment.add("single", "1x1", ONE, number, rows=64, variant="threads", cores=2)
    for strategy in ratios:
        experiment.add(strategy, "1x2", ONE, number, rows=64)
    for path in experiment.runs:
        strategy, repeat = path.parts[-6], int(path.parent.name[3:])
        ratio = threads if "threads" in path.parts else 1.0
        _timed(path, ONE * (ratios[strategy][repeat - 1] if strategy in ratios else ratio))
    return experiment


@pytest.mark.parametrize("threads", [None, 0.7])
def test_a_decided_verdict_answers_before_an_undecided_one(tmp_path, threads):
    """Of less time by its estimate, the second cannot be told from one process."""
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER, "horovod-gloo": WIDE}, threads)
    frames = tabled(experiment, **({"references": REFERENCES} if threads else {}))
    by_estimate = frames["speedup"][frames["speedup"]["reference"] == 1].set_index("strategy")
    assert by_estimate.loc["horovod-gloo", "ratio"] < by_estimate.loc["horovod-mpi", "ratio"]
    first, *_ = told(frames, "answer")
    assert first.startswith("Yes: `horovod-mpi 1x2")
    (advice, *_) = told(frames, "next")
    assert advice.startswith("To save time, train with `horovod-mpi 1x2")
    head = "**Yes: two processes on one node (Horovod over MPI) take 0.55 of the time of one "
    assert head in summary(frames, "demo", "A title")


@pytest.mark.parametrize(
    ("ratios", "verdict", "advice"),
    [
        ((WIDE, EQUAL), "Not distinguishable", "Train with `single 1x1`: more cores"),
        ((SLOWER, EQUAL), "No", "Train with `single 1x1`: no other configuration"),
        ((FASTER, [0.5 * ratio for ratio in FASTER]), "Yes", "To save time, train with `horovod-"),
    ],
)
def test_answer_and_advice_say_the_same(tmp_path, ratios, verdict, advice):
    names = ("horovod-mpi", "horovod-gloo")
    frames = tabled(_measured(tmp_path, dict(zip(names, ratios, strict=True))))
    first, *more = told(frames, "answer")
    assert first.startswith(f"{verdict}: `horovod-")
    found, *_ = told(frames, "next")
    assert found.startswith(advice)
    [answer] = answers(frames)
    assert (answer.best is not None) == (verdict == "Yes")
    if answer.best is not None:
        assert answer.best.names == answer.row.names and f"`{answer.row.label}`" in found
    # A decided `No` alongside an undecided configuration of less time names that one.
    undecided = [text for text in more if text.startswith("Undecided is")]
    assert bool(undecided) == (verdict == "No")


def test_the_best_of_several_is_judged_at_a_simultaneous_level(tmp_path):
    frames = tabled(_measured(tmp_path, {"horovod-mpi": FASTER, "horovod-gloo": EQUAL}))
    first, *_ = told(frames, "answer")
    low, high = min(FASTER), max(FASTER)
    assert f"in this call ({low:.2f}–{high:.2f}, 7 matches, best of 2)" in first
    [answer] = answers(frames)
    found, own = answer.row.headline, answer.row.on_its_own
    expected = ratio_interval(FASTER, level=0.975)
    assert (found.ratio.low, found.ratio.high) == pytest.approx(expected[1:])
    assert (own.ratio.low, own.ratio.high) == pytest.approx(ratio_interval(FASTER)[1:])
    headings, rows = overview(frames)
    [cells] = [row for row in rows if row[0].startswith("horovod-mpi")]
    assert f"({own.ratio.low:.2f}–{own.ratio.high:.2f})" in cells[headings.index("ratio")]


def test_too_few_matches_cannot_tell_the_best_of_many(tmp_path):
    frames = tabled(_measured(tmp_path, dict.fromkeys(STRATEGIES, FASTER)))
    answer, *more = told(frames, "answer")
    assert answer.startswith("No verdict on the best of five: `")
    assert "Seven matches cannot tell the best of five: at least eight are needed." in more
    assert told(frames, "next")[0].startswith("To tell the best of five, set `repeats` to 8 or mor")
    assert set(frames["speedup"]["verdict"]) == {"faster"}, "each by itself has its verdict"
    eight = tabled(_measured(tmp_path / "8", dict.fromkeys(STRATEGIES, (*FASTER, 0.55))))
    answer, *_ = told(eight, "answer")
    assert answer.startswith("Yes: `") and "8 matches, best of 5)" in answer


#: Ratios of two processes in earlier sessions, by the name of the session.
EARLIER = {"20251201T000000Z-1": 0.64, "20251202T000000Z-1": 0.67}


def _with_earlier(experiment: FakeExperiment, earlier: Mapping[str, float], **changes) -> None:
    """Add older sessions, in which two processes took so much of the time of one."""
    for path in experiment.runs:
        run = read_json(path)
        for session, ratio in earlier.items():
            mine = len(run["epochs"]) * ONE * (1.0 if "single" in path.parts else ratio)
            seconds = run["seconds"] | {"train": mine}
            old = run | {"session": session, "seconds": seconds} | changes
            write_json(path.parent / "sessions" / f"{session}.json", old)


def test_three_sessions_have_a_verdict_over_sessions_beside_that_of_the_call(tmp_path):
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, EARLIER)
    frames = tabled(experiment)
    tables.write(frames, tmp_path / "tables")
    (row,) = frames["speedup"].itertuples()
    this_call = ratio_interval(FASTER)
    assert (row.ratio, row.ratio_low, row.ratio_high) == pytest.approx(this_call)
    assert (row.matches, row.sessions, row.sessions_judged, row.sessions_matches) == (7, 1, 3, 21)
    expected = sessions_interval([this_call.estimate, *EARLIER.values()])
    over = (row.sessions_ratio, row.sessions_ratio_low, row.sessions_ratio_high)
    assert over == pytest.approx(expected) and row.sessions_verdict == "faster"
    first, second, *_ = told(frames, "answer")
    ends = f"{expected.low:.2f}–{expected.high:.2f}, 21 matches"
    assert first.startswith(f"Yes: `horovod-mpi 1x2` takes {expected.estimate:.2f}")
    assert f"over three sessions ({ends})" in first
    assert "takes 0.55 of the time" in second and "in this call (0.54–0.57, 7 matches)" in second


def test_sessions_that_differ_leave_no_verdict_and_no_advice_to_change(tmp_path):
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, dict(zip(EARLIER, (1.1, 0.9), strict=True)))
    frames = tabled(experiment)
    first, second, *_ = told(frames, "answer")
    assert first.startswith("Not distinguishable: ") and "over three sessions" in first
    assert second.startswith("Yes: ") and "in this call" in second
    assert told(frames, "next")[0].startswith("Train with `single 1x1`: more cores")


@pytest.mark.parametrize(
    ("sessions", "changes"),
    [(1, {}), (2, {"versions": {"tensorflow": "1.0"}}), (2, {"source_sha256": "1" * 64})],
)
def test_two_sessions_or_others_that_are_not_comparable_have_none(tmp_path, sessions, changes):
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, dict(list(EARLIER.items())[:sessions]), **changes)
    (row,) = tabled(experiment)["speedup"].itertuples()
    assert pd.isna(row.sessions_judged) and pd.isna(row.sessions_ratio)
    assert row.matches == 7


def test_a_session_of_a_few_matches_does_not_count_over_sessions(tmp_path):
    """Two runs were measured again later: their matches are a session, which says little."""
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, EARLIER)
    later = [path for path in experiment.runs if path.parent.name in ("rep1", "rep2")]
    changed(later, session="20260301T000000Z-1")
    frames = tabled(experiment)
    (row,) = frames["speedup"].itertuples()
    assert (row.matches, row.sessions, row.sessions_judged) == (7, 2, 3)
    assert "in two calls" in told(frames, "answer")[1]


def test_a_run_whose_call_ended_before_its_reference_keeps_its_older_match(tmp_path):
    """So the next call measures nothing for it, as `escala.record.matches` counts."""
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    [alone] = [path for path in experiment.runs if {"rep3", "1x2"} <= {*path.parts}]
    changed([alone], session="20260301T000000Z-1")
    (row,) = tabled(experiment)["speedup"].itertuples()
    assert (row.matches, row.sessions) == (7, 1) and pd.isna(row.reason)


def test_sessions_of_the_history_count_and_each_counts_once(tmp_path):
    history = tmp_path / "history"
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, EARLIER)
    add(history, [experiment.folder])
    files = sorted(history.glob("*.parquet"))
    assert {path.name.partition(".")[0] for path in files} == {SESSION, *EARLIER}
    with_both = tabled(experiment, history_files=files)["speedup"]
    for path in experiment.runs:
        for session in EARLIER:
            (path.parent / "sessions" / f"{session}.json").unlink()
    assert tabled(experiment)["speedup"]["sessions_judged"].isna().all()
    from_history = tabled(experiment, history_files=files)["speedup"]
    assert from_history["sessions_judged"].tolist() == [3]
    pd.testing.assert_frame_equal(with_both, from_history)
    # Another code is another measurement.
    changed(experiment.runs, source_sha256="1" * 64)
    assert tabled(experiment, history_files=files)["speedup"]["sessions_judged"].isna().all()


def _variants(folder: Path, slow: tuple[float, float], fast: tuple[float, float]) -> list[str]:
    """Return answer and first step of two variants, each of one process and of two; in seconds."""
    experiment = FakeExperiment(folder).add_dataset()
    for variant, (one, two) in {"slow": slow, "fast": fast}.items():
        experiment.add("single", "1x1", one, 7, variant=variant, rows=64)
        experiment.add("horovod-mpi", "1x2", two, 7, variant=variant, rows=64)
    frames = tabled(experiment)
    return [told(frames, section)[0] for section in ("answer", "next")]


def test_the_least_time_decides_and_not_the_smallest_ratio(tmp_path):
    answer, advice = _variants(tmp_path, slow=(5.0, 2.5), fast=(1.0, 0.8))
    assert answer.startswith("Yes: `horovod-mpi 1x2 fast` takes 0.79 of the time of")
    assert "of the time of `single 1x1 fast` in" in answer
    assert advice.startswith("To save time, train with `horovod-mpi 1x2 fast`; to save core-hours,")


def test_one_process_of_a_faster_variant_is_what_to_train_with(tmp_path):
    answer, advice = _variants(tmp_path, slow=(5.0, 2.5), fast=(1.0, 1.3))
    assert answer.startswith("No: `horovod-mpi 1x2 fast` takes")
    assert advice.startswith("To save time, train with `single 1x1 fast`: its epoch takes 1.01 s, ")


def test_failed_runs_are_to_be_repeated(tmp_path):
    first, *_ = told(failed(tmp_path), "next")
    assert "remove what prevented it, and run `uv run escala retry results/demo`" in first


@pytest.mark.parametrize("strategy", ["torch-single", "ddp-gloo"])
def test_engines_are_compared_by_the_matches_of_their_fastest(tmp_path, strategy):
    """One process of TensorFlow is faster than two, and the reference of the configuration."""
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", ONE, 7, rows=64)
    experiment.add("horovod-mpi", "1x2", 1.5 * ONE, 7, rows=64)
    layout = "1x1" if strategy == "torch-single" else "1x2"
    experiment.add(strategy, layout, 0.5 * ONE, 7, rows=64)
    _, *texts = told(tabled(experiment), "answer")
    [found] = [text for text in texts if "TensorFlow" in text]
    start = f"PyTorch (`{strategy} {layout}`) takes 0.50 of the time of TensorFlow (`single 1x1`) ("
    assert found.startswith(start) and found.endswith(", best of 2).")


def test_engines_whose_fastest_have_no_matches_get_no_verdict(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    for strategy, layout, seconds in (
        ("single", "1x1", 5.0), ("horovod-mpi", "1x2", 4.0), ("ddp-gloo", "1x2", 2.0),
    ):  # fmt: skip
        experiment.add(strategy, layout, seconds, 7, rows=64)
    # Another batch is another computation.
    experiment.add("ddp-gloo", "1x2", 0.1, 7, rows=128, variant="large")
    texts = told(tabled(experiment), "answer")
    [found] = [text for text in texts if "PyTorch" in text]
    assert found.startswith("PyTorch (`ddp-gloo 1x2 tuned`) takes 0.5")
    assert "TensorFlow (`horovod-mpi 1x2 tuned`)" in found and "no verdict" in found


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
        ("horovod-mpi", SLOWER, "why two processes on one node take more time than one process"),
        ("horovod-mpi", FASTER, "why two processes on one node take less time than one process"),
        ("horovod-mpi", EQUAL, "where the time of two processes on one node goes"),
        ("parameter-server", SLOWER, "why two processes on one node take more time than"),
    ],
)  # fmt: skip
def test_a_reason_that_was_not_measured_is_said_to_be_none(tmp_path, strategy, ratios, what):
    """Not the start-up, which is outside the time that is compared."""
    frames = tabled(_measured(tmp_path, {strategy: ratios}))
    first, *rest = told(frames, "why")
    why = first_screen(frames, all_findings(frames, "demo")).brief["why"]
    assert why.startswith(f"Not measured: {what}")
    assert ("`clocks: {enabled: true}`" in first) == (strategy == "horovod-mpi")
    assert any("outside the training steps" in text for text in rest)


def test_a_reason_that_was_measured_comes_first(tmp_path):
    experiment, runs = clocked(tmp_path)
    experiment.runs = [path for path in experiment.runs if "horovod-gloo" not in path.parts]
    assert told(tabled(experiment, probe_files=runs), "why")[0].startswith("A step of ")
    changed(runs, status="failed", reason="no space left")
    texts = told(tabled(experiment, probe_files=runs), "why")
    assert texts[0].endswith("; the run with clocks ended by `no space left`.")
