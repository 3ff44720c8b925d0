"""What the report says of programs: what is known of them, and what is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from fixtures_runs import as_program, changed, laddered, program, rewritten
from pages import drawn, epoch_rows
from sentences import told

from escala.analysis import comparable
from escala.core.files import read_json, write_json
from escala.record.schema import read_result
from escala.report import tables
from escala.report.figures import ALWAYS_DRAWN
from escala.report.findings import SECTIONS
from escala.report.findings.context import Report
from escala.report.page import page, provenance
from escala.report.summary import all_findings, overview, summary

pytestmark = pytest.mark.usefixtures("few_resamples")

NOTHING = {"known_by": "whole run", "named": (), "rows": False}
PRINTED = {"known_by": "output", "named": ("epochs", "rows"), "rows": False, "scores": {"f1": 0.9}}


def frames_of(experiment, folder: Path) -> dict[str, pd.DataFrame]:
    """Return the tables as figures and the summary read them."""
    tables.write(tables.tables(experiment.runs), folder)
    return tables.read(folder)


def change_two(experiment, change: Callable[[dict], object]) -> None:
    rewritten([path for path in experiment.runs if "1x2" in path.parts], change)


@pytest.fixture(
    scope="module",
    params=[{}, pytest.param(PRINTED, marks=pytest.mark.sweep), NOTHING],
    ids=["hook", "output", "whole"],
)
def reported(few_resamples, request, tmp_path_factory) -> tuple[dict, dict, str]:
    """Return what a program told, the tables, and the sentences of all sections."""
    root = tmp_path_factory.mktemp("program")
    frames = frames_of(program(root, **request.param), root / "tables")
    return (
        request.param,
        frames,
        "\n".join([each for section in SECTIONS for each in told(frames, section)]),
    )


def test_everything_is_made_of_what_a_program_tells(reported, tmp_path):
    """No number that is unknown is shown, and nothing is advised that does not apply."""
    knows, frames, text = reported
    figures = drawn(frames, tmp_path, ALWAYS_DRAWN)
    written = page(frames, "demo", "Mine", figures)
    assert ("s per run" in overview(Report(frames))[0]) == (knows == NOTHING)
    for each in (text, written, summary(frames, "demo", "Mine"), *figures.values()):
        assert "<NA>" not in each and "&lt;NA&gt;" not in each and "nan" not in each.split()
    _, *more = told(frames, "answer")
    [unknown] = [each for each in more if each.startswith("Not known of")]
    assert "whether its processes end with the same weights" in unknown
    assert ("rows of an epoch" in unknown) == (not knows.get("rows", True))
    by = {"hook": "by its hook", "output": "by its output", "whole run": "whole runs"}
    [known] = [each for each in more if "is a program, run as it is" in each]
    assert by[knows.get("known_by", "hook")] in known
    what = {"rows": "batch", "epochs": "epochs", "seed": "seed"}
    named = knows.get("named", what)
    decides = [each for each in more if "decides on its" in each]
    assert len(decides) == any(name not in named for name in what)
    assert all(what[name] in decides[0] for name in what if name not in named)
    if knows == NOTHING:
        # An epoch that is a whole run is called one.
        assert "training s per epoch" not in written
        assert not any("epoch" in _text(frames, section) for section in ("why", "cost", "next"))
    assert "clocks" not in text and "predict" not in text
    assert written.count("python train.py") == 1, "the command says where results are from"
    assert "torch" not in re.sub("torch-(ddp|trace)", "", written), "versions stay in run.json"
    assert ("torch-trace" in text) == (knows.get("known_by", "hook") == "hook")


def _text(frames: dict[str, pd.DataFrame], section: str) -> str:
    return " ".join(told(frames, section))


def test_what_runs_say_of_a_program_is_told_and_failed_ones_are_gaps(tmp_path):
    experiment = program(tmp_path, failed=(6, 7))
    cores = "it set its cores itself: [0, 1], and was given [0]"
    files = {f"/mine/part{n}.py": "b" * 64 for n in range(30)}
    for path, notes in zip(experiment.runs, [[cores, "it read its input"], [cores]], strict=False):
        changed([path], program=read_json(path)["program"] | {"notes": notes})
    for path in experiment.runs:
        about = read_json(path)["program"]
        added = {"variables": {"HIDDEN": "abc"}, "read": ["a.json", "/b.json"]}
        changed([path], program=about | added | {"files": about["files"] | files})
    frames = tables.tables(experiment.runs)
    found = all_findings(Report(frames, "demo"))
    sentences = [finding.text for findings in found.values() for finding in findings]
    assert f"`train`, 2 runs: `{cores}`." in sentences
    assert "`train`, 1 run: `it read its input`." in sentences
    assert len([text for text in sentences if "its epochs are known" in text]) == 1
    [noted] = [text for text in sentences if "a.json, /b.json" in text]
    assert "not noticed" in noted
    about = dict(provenance(frames, "demo"))
    assert about["variables of train"] == "HIDDEN"
    assert about["files of train"].startswith("train.py, /mine/part0.py, ")
    assert about["files of train"].endswith(" and 19 more")
    written = page(frames, "demo", "Mine", {})
    assert "no end after 60 s" in written


@pytest.mark.parametrize(
    ("rows", "part", "text"),
    [
        # A third of the steps of an epoch was timed.
        (1050, 3, "An epoch of `train` has 3150 rows, in every configuration."),
        (6300, 1, "Not the same work: an epoch of `torch-ddp 1x2` has 6300 rows, and one of "
                  "`single 1x1` 3150."),
    ],
)  # fmt: skip
def test_ranks_that_each_do_all_of_the_work_are_named(tmp_path, rows, part, text):
    def change(run: dict) -> None:
        for epoch in run["epochs"]:
            epoch["rows"] = rows
        run["samples_per_second"] = rows * len(run["epochs"]) / run["seconds"]["train"]
        run["training"]["steps_per_epoch"] = part * epoch["steps"] if part > 1 else None

    experiment = program(tmp_path)
    change_two(experiment, change)
    frames = tables.tables(experiment.runs)
    first, *more = told(frames, "answer")
    assert text in more and ("another model" in first) == (rows == 6300)
    # Times that are known in different ways are not compared: one may hold the start-up.
    change_two(experiment, lambda run: run["program"].update(known_by="output"))
    (row,) = epoch_rows(tables.tables(experiment.runs, only=["speedup"])).itertuples()
    assert row.kind == "unavailable" and "in different ways: hook and output" in row.reason


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ((0.0, 0.0), "train to the same scores in all seven paired runs"),
        ((0.001, -0.001), "train to scores that are not distinguishable"),
        ((0.1, 0.1), "train to different values of `f1`"),
    ],
)
def test_scores_that_a_program_reports_are_compared_over_repeats(tmp_path, more, text):
    def score(run: dict) -> None:
        two = run["layout"] == "1x2"
        f1 = 0.8 + 0.01 * run["repeat"] + two * more[run["repeat"] % 2]
        # The loss is that of the rows of one rank, and so another one.
        scores = {"f1": f1, "loss": 1.0 + two, "best_f1": f1, "best_loss": 0.5}
        run["evaluation"] = {"rows": None, "scores": scores}

    experiment = program(tmp_path)
    rewritten(experiment.runs, score)
    frames = tables.tables(experiment.runs)
    assert text in _text(frames, "answer")
    assert set(frames["mean_scores"]["score"]) == {"f1", "loss", "best_f1", "best_loss"}
    medians = [each for each in told(frames, "scores") if "median" in each]
    assert len(medians) == 3 and not any("`best_f1`" in each for each in medians)


@pytest.mark.parametrize(("knows", "unit"), [({}, "an epoch"), (NOTHING, "a run")])
def test_ladders_and_second_runs_are_of_what_is_known(tmp_path, knows, unit):
    experiment, series, rungs = laddered(tmp_path)
    rewritten([*experiment.runs, *series], lambda run: as_program(run, **knows))
    frames = tables.tables(experiment.runs, series_files=series, rungs=rungs)
    assert f"s {unit}." in _text(frames, "why")
    assert f"time per {unit.split()[1]}" in drawn(frames, tmp_path, ["ladder"])["ladder"]
    mine, again = program(tmp_path / "mine", **knows), []
    for path in mine.runs[:7]:
        again.append(path.parent.with_name(f"again.{path.parent.name}") / "run.json")
        write_json(again[-1], read_json(path) | {"series": "duplicate"})
    frames = tables.tables(mine.runs, series_files=again)
    assert "the time of its duplicate" in _text(frames, "sure")


def test_other_files_or_packages_make_another_version_of_a_program(tmp_path):
    run = read_result(Path(program(tmp_path, repeats=1, **NOTHING).runs[0]))
    changes = {
        "program": run["program"] | {"files": {"train.py": "b" * 64}},
        # The packages of a program are its own, also those that Escala has around its ranks.
        "versions": run["versions"] | {"snakemake": "8"},
    }
    for name, change in changes.items():
        assert comparable.refusal(run, run | {name: change})
    moved = run["program"] | {"command": ["python", "other.py"]}
    assert comparable.series(run) != comparable.series(run | {"program": moved})
