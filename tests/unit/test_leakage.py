"""The leakage report, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from fixtures_runs import FakeExperiment

from escala.data.genomes.similarity import Sketches, write_similarity
from escala.report import tables


def test_the_similarity_of_a_row_is_that_of_its_genome_to_the_nearest_in_training(tmp_path):
    # Genomes as sets of k-mers: 0 and 3 share 3 of 4, 1 and 2 nothing, of 4 none was kept.
    sets = [[1, 2, 3, 4], [5, 6], [7, 8, 9], [1, 2, 3, 10, 11], []]
    hashes = np.array([k for own in sets for k in own], np.uint64)
    Sketches(hashes, np.cumsum([len(own) for own in sets])).save(tmp_path / "sketches.npz")
    np.save(tmp_path / "train_genomes.npy", np.array([0, 0, 1, -1], np.int32))
    np.save(tmp_path / "test_genomes.npy", np.array([3, 2, 3, -1, 4], np.int32))
    found = write_similarity(tmp_path, tmp_path / "sketches.npz", tmp_path / "out.npy")
    np.testing.assert_array_equal(found, np.float32([0.75, 0, 0.75, np.nan, np.nan]))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy", allow_pickle=False), found)


def report(experiment: FakeExperiment) -> list[dict]:
    return tables.tables(experiment.runs, experiment.dataset_files)["leakage"].to_dict("records")


def test_accuracy_on_the_rest_is_that_of_rows_without_a_relative(tmp_path):
    experiment = FakeExperiment(tmp_path, not_separable=["MERS"]).add_dataset()
    experiment.add("single", "1x1", 5.0, repeats=1, accuracy=0.9)
    run_folder = experiment.runs[0].parent
    predictions = np.load(run_folder / "predictions.npy")
    labels = np.load(experiment.folder / "data/demo-1000/split4/test_labels.npy")
    # Rows 0, 10, 20, … have no relative: make the first three of them wrong, the others right.
    rest = np.arange(0, len(labels), 10)
    predictions[rest] = labels[rest]
    predictions[rest[:3]] = (labels[rest[:3]] + 1) % 5
    np.save(run_folder / "predictions.npy", predictions)
    [row] = report(experiment)
    assert (row["test_rows"], row["similar_fraction"]) == (705, pytest.approx(634 / 705))
    assert row["rest_accuracy"] == pytest.approx(68 / 71)
    assert row["accuracy"] == pytest.approx((predictions == labels).mean())
    assert (row["split_by"], row["not_separable"]) == ("random", "MERS")


def test_without_a_dissimilar_row_the_accuracy_on_the_rest_is_unavailable(tmp_path):
    # What SMOTEN made, NaN, is no independent row either.
    similarity = np.where(np.arange(705) % 2, 0.99, np.nan)
    experiment = FakeExperiment(tmp_path, similarity=similarity).add_dataset()
    experiment.add("single", "1x1", 5.0, repeats=1)
    [row] = report(experiment)
    assert np.isnan(row["rest_accuracy"]) and row["similar_fraction"] == 1
