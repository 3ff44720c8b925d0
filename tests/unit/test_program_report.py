"""What the report says of programs: what is known of them, and what is not."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from fixtures_runs import as_program, changed, laddered, program, three_configurations
from pages import drawn, epoch_rows
from sentences import check

from escala.analysis import comparable
from escala.core.files import read_json, write_json
from escala.record.schema import read_result
from escala.report import pilot, tables
from escala.report.figures import FIGURES
from escala.report.findings import SECTIONS, section_findings
from escala.report.findings.context import Report
from escala.report.history import add
from escala.report.page import page, provenance
from escala.report.summary import overview, summary

pytestmark = pytest.mark.usefixtures("few_resamples")

NOTHING = {"known_by": "whole run", "named": (), "rows": False}
PRINTED = {"known_by": "output", "named": ("epochs", "rows"), "rows": False, "scores": {"f1": 0.9}}


def frames_of(experiment, folder: Path) -> dict[str, pd.DataFrame]:
    """Return the tables as figures and the summary read them."""
    tables.write(tables.tables(experiment.runs), folder)
    return tables.read(folder)


def every_sentence(frames: dict[str, pd.DataFrame]) -> list[str]:
    """Return the sentences of all sections, which are checked."""
    found = [
        each for section in SECTIONS for each in section_findings(section, Report(frames, "demo"))
    ]
    check(found)
    return [each.text for each in found]


def texts(frames: dict[str, pd.DataFrame], section: str) -> list[str]:
    return [each.text for each in section_findings(section, Report(frames, "demo"))]


@pytest.fixture(scope="module", params=[{}, PRINTED, NOTHING], ids=["hook", "output", "whole"])
def reported(few_resamples, request, tmp_path_factory) -> tuple[dict, dict, str]:
    """Return what a program told, the tables, and the sentences of all sections."""
    root = tmp_path_factory.mktemp("program")
    frames = frames_of(program(root, **request.param), root / "tables")
    return request.param, frames, "\n".join(every_sentence(frames))


def test_everything_is_made_of_what_a_program_tells(reported, tmp_path):
    """No number that is unknown is shown, and nothing is advised that does not apply."""
    told, frames, text = reported
    figures = drawn(frames, tmp_path, FIGURES)
    written = page(frames, "demo", "Mine", figures)
    assert ("s per run" in overview(Report(frames))[0]) == (told == NOTHING)
    for each in (text, written, summary(frames, "demo", "Mine"), *figures.values()):
        assert "<NA>" not in each and "&lt;NA&gt;" not in each and "nan" not in each.split()
    assert "clocks" not in text and "predict" not in text
    assert written.count("python train.py") == 1, "the command says where results are from"
    assert "torch" not in re.sub("torch-(ddp|trace)", "", written), "versions stay in run.json"
    assert ("torch-trace" in text) == (told.get("known_by", "hook") == "hook")


@pytest.mark.parametrize("failed", [(1, 3), range(1, 8)])
def test_runs_that_failed_are_gaps(tmp_path, failed):
    frames = frames_of(program(tmp_path, failed=failed), tmp_path / "tables")
    known = [text for text in every_sentence(frames) if "its epochs are known" in text]
    assert len(known) == (len(failed) < 7)
    assert "no end after 60 s" in page(frames, "demo", "Mine", drawn(frames, tmp_path, FIGURES))


def test_what_a_run_says_of_a_program_is_told_with_how_many_runs_say_it(tmp_path):
    experiment = program(tmp_path)
    cores = "it set its cores itself: [0, 1], and was given [0]"
    for path, notes in zip(experiment.runs, [[cores, "it read its input"], [cores]], strict=False):
        changed([path], program=read_json(path)["program"] | {"notes": notes})
    told = every_sentence(frames_of(experiment, tmp_path / "tables"))
    assert f"`train`, 2 runs: `{cores}`." in told
    assert "`train`, 1 run: `it read its input`." in told


def test_what_a_key_knows_of_a_program_is_on_the_page_and_what_it_does_not_is_noted(tmp_path):
    experiment = program(tmp_path)
    for path in experiment.runs:
        about = read_json(path)["program"]
        files = about["files"] | {f"/mine/part{n}.py": "b" * 64 for n in range(30)}
        added = {"files": files, "variables": {"HIDDEN": "abc"}, "read": ["a.json", "/b.json"]}
        changed([path], program=about | added)
    frames = frames_of(experiment, tmp_path / "tables")
    found = dict(provenance(frames, "demo"))
    assert found["variables of train"] == "HIDDEN"
    assert found["files of train"].startswith("train.py, /mine/part0.py, ")
    assert found["files of train"].endswith(" and 19 more")
    noted = [text for text in every_sentence(frames) if "a.json, /b.json" in text]
    assert len(noted) == 1 and "not noticed" in noted[0]


def test_a_program_and_another_workload_stand_beside_each_other(tmp_path):
    """Each is told in its own words."""
    mine, other = program(tmp_path, **NOTHING), three_configurations(tmp_path)
    changed(other.runs, training={"global_batch": 64})
    tables.write(
        tables.tables([*mine.runs, *other.runs], other.dataset_files),
        tmp_path / "tables",
    )
    frames = tables.read(tmp_path / "tables")
    found = every_sentence(frames)
    costs = [text for text in found if "times the core time" in text]
    assert [text.partition(" of ")[0] for text in costs] == ["A run", "An epoch"]
    drawn_times = drawn(frames, tmp_path, ["seconds_per_epoch"])["seconds_per_epoch"]
    assert "time of the whole program (s)" in drawn_times
    assert "training time per epoch (s)" in drawn_times
    assert "clocks" in "".join(texts(frames, "why")), "advice for the other stays"


def test_the_first_sentences_say_what_is_unavailable(reported):
    told, frames, _ = reported
    _, *more = texts(frames, "answer")
    [known] = [text for text in more if "is a program, run as it is" in text]
    [unknown] = [text for text in more if text.startswith("Not known of")]
    by = {"hook": "by its hook", "output": "by its output", "whole run": "whole runs"}
    assert by[told.get("known_by", "hook")] in known
    assert "whether its processes end with the same weights" in unknown
    assert ("rows of an epoch" in unknown) == (not told.get("rows", True))
    named = told.get("named", ("epochs", "rows", "seed"))
    words = {"rows": "batch", "epochs": "epochs", "seed": "seed"}
    own = [what for name, what in words.items() if name not in named]
    decides = [text for text in more if "decides on its" in text]
    assert len(decides) == bool(own) and all(what in decides[0] for what in own)


def test_an_epoch_that_is_a_whole_run_is_called_one(tmp_path):
    frames = frames_of(program(tmp_path, **NOTHING), tmp_path / "tables")
    first, *_ = texts(frames, "answer")
    assert "step" not in first
    for section in ("why", "cost", "next"):
        assert not any("epoch" in text for text in texts(frames, section))
    assert "training s per epoch" not in page(frames, "demo", "Mine", {})


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (3150, "An epoch of `train` has 3150 rows, in every configuration."),
        (6300, "Not the same work: an epoch of `torch-ddp 1x2` has 6300 rows, and one of "
               "`single 1x1` 3150."),
    ],
)  # fmt: skip
def test_ranks_that_each_do_all_of_the_work_are_named(tmp_path, rows, text):
    experiment = program(tmp_path)
    for path in experiment.runs:
        if "1x2" in path.parts:
            epochs = [epoch | {"rows": rows} for epoch in read_json(path)["epochs"]]
            changed([path], epochs=epochs)
    frames = frames_of(experiment, tmp_path / "tables")
    first, *more = texts(frames, "answer")
    assert text in more
    assert ("another model" in first) == (rows == 6300)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (0.0, "train to the same scores in all seven paired runs"),
        (0.001, "train to scores that are not distinguishable"),
        (0.1, "train to different values of `f1`"),
    ],
)
def test_scores_that_a_program_reports_are_compared_over_repeats(tmp_path, more, text):
    experiment = program(tmp_path)
    for path in experiment.runs:
        repeat = read_json(path)["repeat"]
        added = (more if more > 0.05 else more * (-1) ** repeat) if "1x2" in path.parts else 0.0
        # The loss is that of the rows of one rank, and so another one.
        scores = {"f1": 0.8 + 0.01 * repeat + added, "loss": 1.0 + ("1x2" in path.parts)}
        scores |= {"best_f1": scores["f1"], "best_loss": 0.5}
        changed([path], evaluation={"rows": None, "scores": scores})
    frames = frames_of(experiment, tmp_path / "tables")
    assert any(text in each for each in texts(frames, "answer"))
    assert set(frames["mean_scores"]["score"]) == {"f1", "loss", "best_f1", "best_loss"}
    told = [text for text in texts(frames, "scores") if "median" in text]
    assert len(told) == 3 and not any("`best_f1`" in text for text in told)


@pytest.mark.parametrize(("told", "unit"), [({}, "an epoch"), (NOTHING, "a run")])
def test_ladders_second_runs_and_pilots_are_of_what_is_known(tmp_path, told, unit):
    experiment, series, rungs = laddered(tmp_path)
    for path in (*experiment.runs, *series):
        run = read_json(path)
        as_program(run, **told)
        changed([path], **run)
    ladder = tables.tables(experiment.runs, series_files=series, rungs=rungs)
    why = [
        each for each in section_findings("why", Report(ladder, "demo")) if each.table == "ladder"
    ]
    check(why)
    assert any(f"s {unit}." in each.text for each in why)
    assert f"time per {unit.split()[1]}" in drawn(ladder, tmp_path, ["ladder"])["ladder"]

    mine = program(tmp_path / "mine", **told)
    again = []
    for path in mine.runs[:7]:
        again.append(path.parent.with_name(f"again.{path.parent.name}") / "run.json")
        write_json(again[-1], read_json(path) | {"series": "duplicate"})
    plan = pilot.plan(
        tables.Evidence(mine.runs), {"half_width": "5 %", "repeats": 7, "at_most": 40}
    )
    write_json(tmp_path / "pilot.json", plan)
    frames = tables.tables(mine.runs, series_files=again, pilot_file=tmp_path / "pilot.json")
    sure = " ".join(every_sentence(frames))
    assert "the time of its duplicate" in sure and "In the pilot" in sure


def test_times_that_are_known_in_different_ways_are_not_compared(tmp_path):
    """One that holds the start-up says nothing of one that does not."""
    experiment = program(tmp_path)
    for path in experiment.runs:
        if "1x2" in path.parts:
            told = read_json(path)["program"] | {"known_by": "output"}
            changed([path], program=told)
    frames = frames_of(experiment, tmp_path / "tables")
    (row,) = epoch_rows(frames).itertuples()
    assert row.kind == "unavailable" and "in different ways: hook and output" in row.reason


def test_other_files_or_packages_make_another_version_of_a_program_in_its_history(tmp_path):
    experiment = program(tmp_path, repeats=1, **NOTHING)
    run = read_result(Path(experiment.runs[0]))
    changes = {
        "program": run["program"] | {"files": {"train.py": "b" * 64}},
        # The packages of a program are its own, also those that Escala has around its ranks.
        "versions": run["versions"] | {"snakemake": "8"},
    }
    for name, change in changes.items():
        assert comparable.refusal(run, run | {name: change})
    moved = run["program"] | {"command": ["python", "other.py"]}
    assert comparable.series(run) != comparable.series(run | {"program": moved})
    added = add(tmp_path / "history", [experiment.folder])
    assert (added.measurements, added.unreadable) == (2, {})
