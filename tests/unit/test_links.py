"""A configuration over two networks: what the slower one costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures_runs import FakeExperiment, changed
from sentences import check

from escala.report import tables
from escala.report.findings import links

pytestmark = pytest.mark.usefixtures("few_resamples")

ONE = {"strategy": "single", "layout": "1x1"}
NATIVE = {"strategy": "horovod-mpi", "layout": "2x1", "network": "native"}


def texts(folder: Path, references: list[dict], *networks: str) -> list[str]:
    """Return the sentences on a configuration whose epochs take 2, 3, … times 1 s on networks."""
    experiment = FakeExperiment(folder).add_dataset().add("single", "1x1", 1.0, 7)
    for times, network in enumerate(networks, 2):
        experiment.add("horovod-mpi", "2x1", float(times), 7, variant=network)
        over = [path for path in experiment.runs if network in path.parts]
        changed(over, variant="tuned", network=network)
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, references=references
    )
    found = list(links.findings(frames, "demo"))
    check(found)
    return [each.text for each in found]


def test_matches_with_the_faster_network_give_an_interval(tmp_path):
    [text] = texts(tmp_path, [ONE, NATIVE], "native", "slow")
    assert text.startswith("Over `slow`, an epoch of `horovod-mpi 2x1 tuned` takes 1.")
    assert "7 matches" in text and text.endswith("as over `native`.")


def test_without_such_a_reference_median_times_are_compared(tmp_path):
    [text] = texts(tmp_path, [ONE], "native", "slow")
    assert float(text.partition(" takes ")[2].split()[0]) == pytest.approx(1.5, abs=0.1)
    assert "matches" not in text


def test_one_network_costs_nothing_that_is_known(tmp_path):
    assert texts(tmp_path, [ONE], "native") == []
