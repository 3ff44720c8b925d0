"""The summary says what the tables hold, and no more."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fixtures_runs import (
    REFERENCES,
    FakeExperiment,
    changed,
    fair,
    regression,
    three_configurations,
    with_fits,
)
from pages import epoch_rows, tabled
from sentences import told

from escala.core.files import read_json, write_json
from escala.report import tables
from escala.report.findings import SECTIONS, section_findings
from escala.report.findings.context import Report
from escala.report.summary import summary

pytestmark = pytest.mark.usefixtures("few_resamples")


def read(frames) -> dict[str, list[str]]:
    """Return the findings of each section, all of which follow the rules."""
    return {section: told(frames, section) for section in SECTIONS}


def _read(experiment: FakeExperiment, **more) -> dict[str, list[str]]:
    return read(tabled(experiment, **more))


@pytest.fixture(scope="module")
def three_tables(few_resamples, tmp_path_factory):
    return tabled(three_configurations(tmp_path_factory.mktemp("three")))


@pytest.fixture(scope="module")
def three(three_tables):
    return read(three_tables)


def test_the_answer_comes_first_and_evidence_is_linked(three_tables, three):
    files = ["figures/seconds_per_epoch.svg", "tables/best_use.csv", "tables/runs.csv"]
    text = summary(three_tables, "demo", "A title", files)
    title, answer, *_ = text.split("\n\n")
    assert title == "# A title"
    evidence = "([table](tables/best_use.csv), [figure](figures/seconds_per_epoch.svg))"
    said = section_findings("answer", Report(three_tables, "demo"))[0].spoken
    assert answer == f"**{said}** {evidence}"
    assert f"- {three['data'][0]} ([table](tables/runs.csv))\n" in text
    assert "- [best_use.csv](tables/best_use.csv)" in text
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    # All of the answer stands before the sections.
    expected = list(SECTIONS.values())[1:]
    assert headings == [
        *(each for each in expected if each != "At what cost"),
        "Configurations",
        "Figures and tables",
    ]
    assert all(f"- {each}" in text for name in expected for each in three.get(name, ()))


def test_machines_of_superseded_runs_are_not_named(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    [newest, *_] = experiment.runs
    run = read_json(newest)
    older = {"session": "20250101T000000Z-1", "started": "2025-01-01T00:00:00+00:00"}
    older["machine"] = run["machine"] | {"cpu": "Old CPU"}
    write_json(newest.parent / "sessions" / "20250101T000000Z-1.json", run | older)
    frames = tabled(experiment)
    assert "Old CPU" in set(frames["runs"]["cpu"])
    found = read(frames)["data"]
    assert found[0] == "1 configuration was timed, with 3 runs that ended ok."
    assert "Example CPU" in " ".join(found) and "Old CPU" not in " ".join(found)


def test_epochs_that_were_cut_short_are_estimated_and_are_no_whole_runs(tmp_path):
    experiment = fair(tmp_path, 5.6, 4.6, 3.9)
    changed(experiment.runs, training={"target_accuracy": None, "steps_per_epoch": 10_000})
    frames = tabled(experiment, references=REFERENCES)
    rows = frames["best_use"]
    assert set(rows["kind"]) == {"estimated"} and rows["run_ratio"].isna().all()
    assert any("are estimated from a part of an epoch" in text for text in read(frames)["sure"])


def test_the_cost_is_that_of_all_cores(tmp_path):
    frames = tabled(fair(tmp_path, 5.6, 4.6, 3.9), references=REFERENCES)
    core_time, hours = read(frames)["cost"]
    [answer] = Report(frames).answers
    # Two processes with a core each against one process with one core.
    for end in answer.fewer.ratio[:3]:
        assert f"{2 * end:.2f}" in core_time
    row = answer.fewer.row
    for cores, seconds in ((2, row["run_seconds"]), (1, row["alternative_run_seconds"])):
        assert f"{cores * seconds / 3600:.2g}" in hours


def test_efficiency_counts_cores(tmp_path):
    frames = tabled(fair(tmp_path, 4.0, 4.0, 4.0), references=REFERENCES)
    rows = epoch_rows(frames).set_index(["variant", "reference"])
    fractions = (rows["efficiency"] / rows["speedup"]).to_dict()
    assert fractions == pytest.approx({("threads", 1): 0.5, ("tuned", 1): 0.5, ("tuned", 2): 1})


def test_it_says_what_failed_and_what_to_do(three_tables, three):
    count, remedy = three["failures"]
    assert count == "Of 9 timing runs, 1 did not end ok."
    assert "run `uv run escala retry results/demo` and then the same command" in remedy
    failed = "\n- `horovod-gloo 1x2` rep 3 (failed): `rank 1 was ended by signal 9`\n"
    assert failed in summary(three_tables, "demo", "A title")


def test_scores_of_a_workload_that_brings_its_own_are_said(tmp_path):
    experiment = regression(tmp_path)
    found = read(tables.tables(experiment.runs))
    leaky, medians = found["scores"]
    assert "too good, because its split is leaky" in leaky
    assert "`rmse` is 0.5 for `single 1x1` and 0.55 for `horovod-mpi 1x2`." in medians
    assert "All 6 timing runs ended ok." in found["failures"]
    both = three_configurations(tmp_path / "classes")
    found = read(tables.tables([*both.runs, *experiment.runs], both.dataset_files))["scores"]
    assert any("lowest precision of a class is" in text for text in found)
    assert any("median of `rmse` is 0.5 for `single 1x1 regression` and" in text for text in found)


def test_runs_that_ended_ok_are_not_called_failed_where_nothing_is_known_of_them(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    changed(experiment.runs, training={"steps_per_epoch": 1000, "resumed_after": [1]})
    found = _read(experiment)
    assert "unavailable: no run ended ok at one sitting" in found["why"][0]
    assert "unavailable: no run that ended ok trained over whole epochs" in found["scores"][0]
    assert found["answer"][0].startswith("Nothing was compared: ") and not found["cost"]


def test_what_is_unavailable_is_told(tmp_path):
    failed = dict.fromkeys((1, 2, 3), ("failed", "a `quoted`\nreason | <b>"))
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0, failed=failed)
    frames = tabled(experiment.add("horovod-mpi", "1x2", 5.0, failed=failed))
    found = read(frames)
    assert found["answer"][0].startswith("Unavailable: `")
    assert all("unavailable" in text for text in (*found["why"], *found["scores"]))
    reasons = "rep 1, 2, 3 (failed): `a 'quoted' reason | <b>`"
    assert reasons in summary(frames, "demo", "A title")


def test_fits_are_there_for_their_scores_and_compared_in_nothing_else(tmp_path):
    frames = tabled(with_fits(tmp_path))
    found = read(frames)
    assert found["data"][0].startswith("5 configurations were timed")
    times = " ".join(text for name in ("answer", "why", "sure", "cost") for text in found[name])
    assert "horovod" in times and "kmer-logreg" not in times and "majority" not in times
    for workload in ("kmer-logreg", "majority"):
        expected = f"The median accuracy of `{workload}` on `demo-1000` is 0."
        assert any(text.startswith(expected) for text in found["scores"])
    lines = summary(frames, "demo", "A title").splitlines()
    (row,) = [line for line in lines if "kmer-logreg |" in line]
    assert row.count(" – ") == 8 and re.search(r"\| – \(fit: 0\.\d\d s\) \|", row)


def test_it_says_what_relatives_in_training_add_by_the_kind_of_split(tmp_path):
    experiment = with_fits(tmp_path)
    clusters = FakeExperiment(
        tmp_path, dataset="demo-cluster", split={"by": "cluster"},
        not_separable=["COVID", "SARS"], similarity=np.full(705, 0.97),
    )  # fmt: skip
    clusters.add_dataset().add("single", "1x1", 5.0, accuracy=0.8, untested="SARS")
    experiment.runs += clusters.runs
    found = "\n".join(_read(experiment)["scores"])
    for expected in (
        r"On `demo-1000`, split by `random`, 90 % of the test rows have a near-dupl",
        r"`kmer-logreg` is 0\.9\d\d on all test rows, and 0\.9\d\d on rows without near",
        r"On `demo-cluster`, split by `cluster`, 100 %",
        r"`COVID, SARS` cannot be separated and has no score",
        r"unavailable on rows without near-duplicate, as there are none\.",
        r"no test rows, and hence no scores, of `SARS \(demo-cluster\)`\.",
    ):
        assert re.search(expected, found), expected
