"""What to do next follows from the verdicts, and from what was not measured or predicted."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from fixtures_runs import REFERENCES, FakeExperiment, changed, clocked, fair, three_configurations
from pages import failed
from sentences import check

from escala.report import tables
from escala.report.findings import of_section
from escala.report.page import brief

pytestmark = pytest.mark.usefixtures("few_resamples")


def _texts(frames: dict[str, pd.DataFrame]) -> list[str]:
    found = list(of_section("next", frames, "demo"))
    check(found)
    return [each.text for each in found]


def _fair(folder: Path, *seconds: float, repeats: int = 7, change=None) -> list[str]:
    """Return the steps after an experiment of one process, one with two cores, and two."""
    experiment = fair(folder, *seconds, repeats)
    if change:
        changed([path for path in experiment.runs if "horovod-mpi" in path.parts], **change)
    return _texts(
        tables.tables(
            experiment.runs, experiment.dataset_files, experiment.class_files, references=REFERENCES
        )
    )


@pytest.mark.parametrize(
    ("seconds", "advice"),
    [
        (
            (5.6, 4.6, 3.9),
            "To save time, train with `horovod-mpi 1x2 tuned`; to save core-hours, train with "
            "`single 1x1 tuned`.",
        ),
        (
            (5.6, 3.0, 3.9),
            "To save time, train with `single 1x1 threads`, which takes 0.54 of the time of "
            "`single 1x1 tuned`; to save core-hours, train with `single 1x1 tuned`.",
        ),
        ((5.6, 5.0, 2.0), "To save time, train with `horovod-mpi 1x2 tuned`."),
        (
            (4.0, 5.0, 5.6),
            "Train with `single 1x1 tuned`: no other configuration was found to take less time.",
        ),
        (
            (4.0, 4.0, 4.0),
            "Train with `single 1x1 tuned`: more cores were not found to save time.",
        ),
    ],
)
def test_the_verdicts_decide_what_to_train_with(tmp_path, seconds, advice):
    assert _fair(tmp_path, *seconds)[0] == advice


def _variants(folder: Path, slow: tuple[float, float], fast: tuple[float, float]) -> list[str]:
    """Return answer and steps of two variants, each of one process and of two; in seconds."""
    experiment = FakeExperiment(folder).add_dataset()
    for variant, (one, two) in {"slow": slow, "fast": fast}.items():
        experiment.add("single", "1x1", one, 7, variant=variant, rows=64)
        experiment.add("horovod-mpi", "1x2", two, 7, variant=variant, rows=64)
    frames = tables.tables(experiment.runs, experiment.dataset_files, experiment.class_files)
    [answer, *_] = of_section("answer", frames, "demo")
    return [answer.text, *_texts(frames)]


def test_the_least_time_decides_and_not_the_smallest_ratio(tmp_path):
    answer, advice, *_ = _variants(tmp_path, slow=(5.0, 2.5), fast=(1.0, 0.8))
    assert answer.startswith("Yes: two processes (`horovod-mpi 1x2 fast`) take 0.79 of the time of")
    assert "of one process (`single 1x1 fast`)" in answer
    assert advice == (
        "To save time, train with `horovod-mpi 1x2 fast`; to save core-hours, train with "
        "`single 1x1 fast`."
    )


def test_one_process_of_a_faster_variant_is_what_to_train_with(tmp_path):
    answer, advice, *_ = _variants(tmp_path, slow=(5.0, 2.5), fast=(1.0, 1.3))
    assert answer.startswith("No: two processes (`horovod-mpi 1x2 fast`)")
    assert advice == (
        "To save time, train with `single 1x1 fast`: its epoch takes 1.01 s, and one "
        "of `horovod-mpi 1x2 slow` 2.50 s."
    )


def test_what_cannot_be_distinguished_needs_more_pairs(tmp_path):
    assert (
        "To see savings half as large, `horovod-mpi 1x2 tuned` needs about four times its 7 "
        "matches: raise `repeats`."
    ) in _fair(tmp_path, 4.0, 4.0, 4.0)


def test_too_few_pairs_need_repeats(tmp_path):
    first, *_ = _fair(tmp_path, 5.6, 4.6, 3.9, repeats=5)
    assert first == (
        "For a verdict on `horovod-mpi 1x2 tuned`, set `repeats` to 6 or more, and repeat the call."
    )


def test_different_batches_need_a_target(tmp_path):
    batch = {"training": {"global_batch": 128, "target_accuracy": None}}
    assert (
        "To judge `horovod-mpi 1x2 tuned`, set `target_accuracy`, or give `single 1x1 tuned` the "
        "same global batch."
    ) in _fair(tmp_path, 5.6, 4.6, 3.9, change=batch)


def test_failed_runs_are_to_be_repeated(tmp_path):
    assert _texts(failed(tmp_path))[0] == (
        "To compare `horovod-mpi 1x2` with `single 1x1`, remove what prevented it, and run "
        "`uv run escala retry results/demo` and then the same command again."
    )


def test_more_repeats_do_not_replace_those_that_failed(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 5.0, 7, rows=64)
    experiment.add("horovod-mpi", "1x2", 4.0, 7, rows=64)
    failing = [path for path in experiment.runs if "1x2" in path.parts][:2]
    changed(failing, status="failed", reason="rank 1 was ended by signal 9")
    files = experiment.runs, experiment.dataset_files, experiment.class_files
    first, *_ = _texts(tables.tables(*files))
    assert first == (
        "For a verdict on `horovod-mpi 1x2`, run `uv run escala retry results/demo` and then "
        "the same command again."
    )


def test_what_was_not_measured_or_predicted_is_named(tmp_path):
    experiment, runs = clocked(tmp_path)
    without_gloo = [path for path in experiment.runs if "horovod-gloo" not in path.parts]
    files = (without_gloo, experiment.dataset_files, experiment.class_files)
    without, found = (
        _texts(tables.tables(*files)),
        _texts(tables.tables(*files, probe_files=runs)),
    )
    assert any("clocks" in text for text in without)
    assert not any("clocks" in text for text in found)
    for texts in (without, found):
        assert any("`predictions`" in text for text in texts)


def test_the_first_screen_has_a_sentence_on_what_answers_from_each_section(tmp_path):
    experiment = three_configurations(tmp_path)
    frames = tables.tables(experiment.runs, experiment.dataset_files, experiment.class_files)
    found = {
        name: list(of_section(name, frames, "demo")) for name in ("why", "sure", "cost", "next")
    }
    first = brief(frames, found)
    assert list(first) == list(found)
    assert all("`horovod-gloo 1x2`" in each.text for each in first.values())
    assert all(first[name] in found[name] for name in found)
    assert list(brief(frames, found | {"cost": []})) == ["why", "sure", "next"]
