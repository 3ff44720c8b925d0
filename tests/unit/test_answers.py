"""The level of an answer, what sessions make of it, and what is said beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from fixtures_runs import SESSION, FakeExperiment, changed, clocked
from pages import epoch_rows, failed, table_of, tabled
from sentences import told

from escala.analysis.best_use import PAYS, TIED
from escala.analysis.statistics import (
    deviation_of_sessions,
    next_time_interval,
    ratio_interval,
    sessions_interval,
)
from escala.core.files import read_json, write_json
from escala.draft.answer import describe_whole
from escala.experiment import Run
from escala.experiment.runs import Declared
from escala.measure.plan import Plan, PlannedRun
from escala.report import progress, tables
from escala.report.findings.context import Report
from escala.report.history import add
from escala.report.progress import Progress
from escala.report.summary import all_findings, first_screen
from escala.report.tables.runs import NO_END
from escala.workloads import WORKLOADS

pytestmark = pytest.mark.usefixtures("few_resamples")

ONE = 5.0
FASTER = (0.53, 0.54, 0.55, 0.55, 0.56, 0.57, 0.58)
EQUAL = (0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03)


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
    assert Report(frames).answers[0].verdict == PAYS
    # Two runs were measured again later: their matches are a session, which says little.
    later = [path for path in experiment.runs if path.parent.name in ("rep1", "rep2")]
    changed(later, session="20260301T000000Z-1", started="2026-03-01T00:00:00+00:00")
    (row,) = epoch_rows(tabled(experiment, only=["speedup"])).itertuples()
    assert (row.matches, row.sessions, row.over_sessions) == (21, 3, True)
    # Sessions that differ leave it open.
    experiment = _measured(tmp_path / "differ", {"horovod-mpi": FASTER})
    _with_earlier(experiment, dict(zip(EARLIER, (1.1, 0.9), strict=True)))
    frames = tabled(experiment)
    [answer] = Report(frames).answers
    assert (answer.verdict, answer.thriftiest) == (TIED, "single 1x1")
    assert told(frames, "next")[0].startswith("Train with `single 1x1`:")
    # A run whose call ended before its reference keeps its older match.
    experiment = _measured(tmp_path / "ended", {"horovod-mpi": FASTER})
    [alone] = [path for path in experiment.runs if {"rep3", "1x2"} <= {*path.parts}]
    changed([alone], session="20260301T000000Z-1")
    (row,) = epoch_rows(tabled(experiment, only=["speedup"])).itertuples()
    assert (row.matches, row.sessions) == (7, 1) and pd.isna(row.reason)


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
    (row,) = table_of("best_use", experiment).itertuples()
    whole = len(epochs) * ONE + 1
    by_steps = *EARLIER.values(), ratio_interval(FASTER).estimate
    ratios = [(len(epochs) * ONE * each + 1) / whole for each in by_steps]
    assert min(ratios) < row.run_ratio < max(ratios) and row.run_verdict == "faster"
    assert row.faster_from_epochs == 1


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
    (row,) = epoch_rows(tabled(experiment, only=["speedup"])).itertuples()
    assert (row.matches, row.sessions, row.over_sessions) == (7, 1, False)
    inside = ratio_interval(FASTER)
    assert row.ratio == pytest.approx(inside.estimate)
    assert row.ratio_low < inside.low and row.ratio_high > inside.high


def test_sessions_of_the_history_count_and_each_counts_once(tmp_path):
    history = tmp_path / "history"
    experiment = _measured(tmp_path, {"horovod-mpi": FASTER})
    _with_earlier(experiment, EARLIER)
    add(history, [experiment.folder])
    files = sorted(history.glob("*.parquet"))
    assert {path.name.partition(".")[0] for path in files} == {SESSION, *EARLIER}
    with_both = epoch_rows(tabled(experiment, only=["speedup"], history_files=files))
    for path in experiment.runs:
        for session in EARLIER:
            (path.parent / "sessions" / f"{session}.json").unlink()
    assert epoch_rows(tabled(experiment, only=["speedup"]))["over_sessions"].tolist() == [False]
    from_history = epoch_rows(tabled(experiment, only=["speedup"], history_files=files))
    assert from_history["sessions"].tolist() == [3]
    pd.testing.assert_frame_equal(with_both, from_history)
    # Another code is another measurement.
    changed(experiment.runs, source_sha256="1" * 64)
    assert not epoch_rows(tabled(experiment, only=["speedup"], history_files=files))[
        "over_sessions"
    ].any()


def test_what_to_do_next_names_what_prevents_a_verdict(tmp_path):
    retry = "run `uv run escala retry results/demo`"
    assert retry in told(failed(tmp_path / "failed"), "next")[0]
    # More repeats do not replace those that failed.
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 5.0, 7, rows=64)
    failures = dict.fromkeys((1, 2, 3), ("failed", "rank 1 was ended by signal 9"))
    experiment.add("horovod-mpi", "1x2", 4.0, 7, failures, rows=64)
    first, *more = told(tabled(experiment), "next")
    assert "a verdict on `horovod-mpi 1x2`" in first and retry in first
    assert any("`predictions`" in text for text in more), "what was not predicted is named"


@pytest.mark.parametrize("strategy", ["torch-single", "ddp-gloo"])
def test_engines_are_compared_by_the_quickest_of_each(tmp_path, strategy):
    """One process of TensorFlow takes less time than two."""
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", ONE, 7, rows=64)
    experiment.add("horovod-mpi", "1x2", 1.5 * ONE, 7, rows=64)
    failures = dict.fromkeys(range(1, 8), ("failed", "rank 1 was ended by signal 9"))
    experiment.add("horovod-gloo", "1x2", ONE, 7, failures, rows=64)
    layout = "1x1" if strategy == "torch-single" else "1x2"
    experiment.add(strategy, layout, 0.5 * ONE, 7, rows=64)
    # Without a target accuracy, another batch is another model.
    experiment.add(strategy, layout, 0.1, 7, rows=128, variant="large")
    changed(experiment.runs, training={"target_accuracy": None})
    frames = tabled(experiment)
    # What failed is between the others, the slowest of which comes first.
    frames["best_use"] = frames["best_use"].iloc[[1, 2, 0]]
    [answer] = Report(frames).answers
    [one] = [each for each in answer.alternatives if each.names[2] == "single"]
    [text] = [text for text in told(frames, "answer") if "TensorFlow" in text]
    names = [f"{strategy} {layout} tuned", "single 1x1 tuned"]
    assert [answer.label, one.label] == names and f"{one.ratio.value:.2f}" in text
    assert all(f"`{name}`" in text for name in names)


@pytest.mark.parametrize("ratios", [EQUAL, FASTER])
def test_a_reason_that_was_not_measured_is_said_to_be_none(tmp_path, ratios):
    """Not the start-up, which is outside the time that is compared."""
    report = Report(tabled(_measured(tmp_path, {"horovod-mpi": ratios})), "demo")
    found = all_findings(report)
    first, *rest = (finding.text for finding in found["why"])
    screen = first_screen(report, found)
    [reason] = screen.brief["why"]
    assert reason.spoken.startswith("Not measured: ")
    assert ("take less time" in reason.spoken) == (ratios == FASTER)
    assert "`clocks: {enabled: true}`" in first
    assert any("outside the training steps" in text for text in rest)
    texts = " ".join(finding.text for finding in found["answer"])
    assert "TensorFlow" not in texts, "one engine is not compared"
    # A question without an answer gives way to that of time.
    for question in ("energy", "engines", "links"):
        asked = first_screen(report, found, question)
        assert asked == screen and len(asked.answers) == 1


def test_a_reason_that_was_measured_comes_first(tmp_path):
    experiment, runs = clocked(tmp_path)
    experiment.runs = [path for path in experiment.runs if "horovod-gloo" not in path.parts]
    assert told(tabled(experiment, probe_files=runs), "why")[0].startswith("A step of ")
    changed(runs, status="failed", reason="no space left")
    texts = told(tabled(experiment, probe_files=runs), "why")
    assert texts[0].endswith("; the instrumented run has no parts: `no space left`.")
    # Clocks are not advised where the engine has none.
    first, *_ = told(tabled(_measured(tmp_path / "jax", {"jax-gloo": FASTER})), "why")
    assert first.startswith("Not measured: why ") and "enabled: true" not in first


SEVEN, BOTH = range(1, 8), ("single", "horovod-mpi")


def planned_run(strategy: str, repeat: int, **more: str) -> Run:
    layout = "1x1" if strategy == "single" else "1x2"
    names = ("small", "data", "virus-cnn", strategy, layout, "tuned", "native")
    return Run(*names, repeat, **more, declared=Declared(WORKLOADS["virus-cnn"], None, {}, {}))


EVERY_RUN = [planned_run(strategy, repeat) for repeat in SEVEN for strategy in BOTH]


class Shown:
    """A session of which each run takes 15 s."""

    def __init__(self, capsys):
        self.now, self._capsys = 0.0, capsys
        self._progress = Progress(clock=lambda: self.now)

    def before(self, run: Run, *done: Run, more: tuple[Run, ...] = (), sequential=None) -> str:
        """Return what is shown when a run begins, after others have ended."""
        every = [PlannedRun(each.names, "", 0, None, (), 0, each) for each in (*EVERY_RUN, *more)]
        plan = Plan("small", (), sequential, tuple((each,) for each in every))
        self._progress.tell(plan, [each for each in every if each.run not in done])
        self._progress.begin(run)
        self.now += 15.0
        return self._capsys.readouterr().err


@pytest.fixture
def shown(monkeypatch, capsys) -> Shown:
    monkeypatch.setattr(progress, "answer", lambda files, *_: (
        ["one takes 0.63–0.71", "two takes 0.9–1.1"] if len(files) > 2 else []
    ))  # fmt: skip
    return Shown(capsys)


def test_a_run_is_shown_with_its_number_and_the_time_left_at_the_pace_so_far(shown):
    one, two, three, *_ = EVERY_RUN
    assert shown.before(one).startswith(f"1 of 14: Train virus-cnn on data: {one.configuration}")
    # The 13 runs that are left take 15 s each.
    assert shown.before(two, one).startswith("2 of 14, 3 min 15 s left: ")
    # A run that is measured again is no further run.
    assert shown.before(one, one, two).startswith("2 of 14, ")
    assert shown.before(three, one, two, sequential={"at_most": 7}).startswith("3 of at most 14, ")


def test_an_answer_is_shown_once_after_the_repeat_that_changes_it(shown):
    shown.before(EVERY_RUN[0])
    for number in range(1, 6):
        line = shown.before(EVERY_RUN[number], *EVERY_RUN[:number])
        new = "After 2 repeats: one takes 0.63–0.71; two takes 0.9–1.1" in line
        assert new == (number == 4), line


def test_what_was_measured_before_the_call_is_not_told(shown):
    assert "After" not in shown.before(EVERY_RUN[8], *EVERY_RUN[:8])
    assert "After 5 repeats" in shown.before(EVERY_RUN[10], *EVERY_RUN[:10])


def test_an_answer_that_cannot_be_given_ends_nothing(shown, monkeypatch):
    def damaged(*_):
        raise OSError("run.json is damaged")

    monkeypatch.setattr(progress, "answer", damaged)
    shown.before(EVERY_RUN[0])
    said, line = shown.before(EVERY_RUN[4], *EVERY_RUN[:4]).splitlines()
    assert said == "escala: small: no answer so far: run.json is damaged"
    assert line.startswith("5 of 14, ")


def test_the_whole_training_is_told_only_if_it_is_known_of_all_that_was_measured():
    about = {"dataset": "none", "workload": "train", "strategy": "single", "network": "native"}
    rows = pd.DataFrame(
        [
            about | {"layout": "1x1", "variant": "a", "cores": "0", "projected_seconds": 7200.0},
            about | {"layout": "1x2", "variant": "a", "cores": "0;1", "projected_seconds": 4800.0},
            about | {"layout": "1x1", "variant": "b", "cores": "0,1", "projected_seconds": 6000.0},
        ]
    ).assign(kind="estimated", projected_from="10 epochs of 938 steps by its lines")
    [sentence] = describe_whole(rows, rows)
    assert re.findall(r"\d+ h \d+ min", sentence) == ["2 h 0 min", "1 h 20 min", "1 h 40 min"]
    assert re.findall("one process with two threads|one process|two processes", sentence) == [
        "one process", "two processes", "one process with two threads",
    ]  # fmt: skip
    assert sentence.count(" about ") == 3
    no_end = rows.assign(projected_from=rows["projected_from"] + NO_END)
    assert next(describe_whole(no_end, rows)).count(" at least ") == 3
    # Two commands are told apart by their variants, and changes of one also by their layouts.
    commands = rows.iloc[[0, 2]].assign(cores="0")
    assert re.findall("`(.)`", *describe_whole(commands, commands)) == ["a", "b"]
    changes = pd.concat([rows.iloc[:2], rows.iloc[:2].assign(variant="b")])
    assert re.findall("`(.{5})`", *describe_whole(changes, changes)) == [
        "1x1 a", "1x2 a", "1x1 b", "1x2 b",
    ]  # fmt: skip
    rows.loc[1, "projected_seconds"] = None
    assert list(describe_whole(rows, rows)) == []
    rows.loc[1, "kind"] = "unavailable"
    assert len(list(describe_whole(rows, rows))) == 1
