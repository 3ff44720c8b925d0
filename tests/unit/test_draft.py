"""Drafts of experiments: every kind of data gives a valid experiment, and its file is the draft."""

from __future__ import annotations

import gzip
import shutil

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from escala.core.errors import InputError
from escala.draft.data import SIMULATED, recognise
from escala.draft.data import draft as drafted
from escala.draft.file import Draft
from escala.draft.file import text as text_of_draft
from escala.engines import engine_name
from escala.experiment import Experiment
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS


def draft(*names: str, **options: object) -> dict:
    return drafted(*names, **options).settings


def text(settings: dict) -> str:
    return text_of_draft(Draft(settings, {}, []), "escala new")


@pytest.fixture
def fasta(tmp_path):
    folder = tmp_path / "my viruses"
    folder.mkdir()
    (folder / "NORTH.fasta").write_text(">n1\nACGT\n")
    with gzip.open(folder / "SOUTH.fna.gz", "wt") as file:
        file.write(">s1\nACGT\n")
    (folder / "notes.txt").write_text("not read")
    return folder


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "flowers.csv"
    path.write_text("1,2,a\n3,5,b\n")
    return path


@pytest.fixture
def pictures(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        Image.new("RGB", (8, 9)).save(tmp_path / "pets" / name / "1.png")
    return tmp_path / "pets"


@pytest.mark.parametrize(
    ("data", "kind", "name", "workload"),
    [
        ("fasta", "genomes", "my-viruses", "virus-cnn"),
        ("table", "tabular", "flowers", "mlp"),
        ("pictures", "images", "pets", "cifar-cnn"),
    ],
)
def test_data_are_recognised_and_give_a_valid_experiment_in_a_file(
    data, kind, name, workload, request
):
    path = str(request.getfixturevalue(data))
    found = recognise(path)
    assert (found.settings["kind"], found.name, found.workload) == (kind, name, workload)
    settings = draft("mine", path)
    content = text(settings)
    assert yaml.safe_load(content) == settings
    assert list(yaml.safe_load(content)) == list(settings), "keys have the order of the draft"
    lines = content.splitlines()
    for key in settings:
        [place] = [number for number, line in enumerate(lines) if line.startswith(f"{key}:")]
        assert lines[place - 1].startswith("# ") and len(lines[place - 1]) <= 100, key
    experiment = Experiment(settings, "mine.yaml")
    by_steps = {run.workload for run in experiment.runs if WORKLOADS[run.workload].takes_steps}
    assert by_steps == {workload}
    one = {("single", "1x1", "tuned"), ("single", "1x1", "threads")}
    measured = {(run.strategy, run.layout, run.variant) for run in experiment.runs}
    assert measured >= one | {("horovod-mpi", "1x2", "tuned")}
    assert {(r["strategy"], r["layout"], r["variant"]) for r in settings["references"]} == one


OF_ARRAYS = """
description: A network for arrays.
data_kind: arrays
settings: {type: object, additionalProperties: false, properties: {}}
"""


@pytest.fixture
def for_arrays(tmp_path, registries):
    folder = tmp_path / "network"
    folder.mkdir()
    (folder / "workload.yaml").write_text(OF_ARRAYS)
    (folder / "model.py").touch()
    return str(folder)


@pytest.mark.parametrize(
    ("names", "sides", "inputs", "archive"),
    [
        (("x", "y"), {"train"}, {"x"}, True),
        (("Xtrain", "ytrain", "Xval", "yval", "Xtest", "ytest"),
         {"train", "validation", "test"}, {"X"}, True),
        (("train_images", "train_labels", "test_images", "test_labels"),
         {"train", "test"}, {"images"}, False),
        (("codes", "age", "target"), {"train"}, {"codes", "age"}, False),
    ],
)  # fmt: skip
def test_arrays_are_recognised_by_their_names(names, sides, inputs, archive, tmp_path, for_arrays):
    targets = {"y", "labels", "target"}
    arrays = {
        name: np.arange(12) % 3
        if targets & set(name.replace("y", "y_").split("_"))
        else np.ones((12, 2))
        for name in names
    }
    path = tmp_path / ("own.npz" if archive else "own")
    if archive:
        np.savez(path, **arrays)
    else:
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
    found = recognise(str(path)).settings
    assert sides == {"train", "test", "validation"} & found.keys()
    assert found["train"]["inputs"].keys() == inputs
    assert found["classes"] == 3
    experiment = Experiment(draft("mine", str(path), workload=for_arrays), "mine.yaml")
    assert experiment.datasets["own"]["kind"] == "arrays"
    with pytest.raises(InputError, match=r"no workload of Escala reads.*--command"):
        draft("mine", str(path))


def test_arrays_whose_names_tell_nothing_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", np.ones(3), np.ones(3))
    with pytest.raises(InputError, match="arr_0, arr_1, and their names do not show"):
        recognise(str(tmp_path / "a.npz"))
    (tmp_path / "b.npz").write_text("no archive")
    with pytest.raises(InputError, match=r"b\.npz.*is not a file of NumPy, or is damaged"):
        recognise(str(tmp_path / "b.npz"))


@pytest.mark.parametrize("names", [("x", "x_train"), ("img-1", "img_1"), ("a_test", "test-a")])
def test_arrays_that_would_be_one_input_are_refused(tmp_path, names):
    y = {"y_train": [0, 1], "y_test": [0, 1], "x_test": [1, 2], "b_train": [1, 2]}
    np.savez(tmp_path / "a.npz", **{name: [1, 2] for name in names}, **y)
    with pytest.raises(InputError, match=f"{names[0]} and .*{names[1]} would both be the input"):
        recognise(str(tmp_path / "a.npz"))


def test_packed_tables_are_recognised_and_those_with_tabs_are_named(tmp_path):
    for name in ("a.csv", "a.CSV.xz", "a.csv.bz2", "a.csv.gz"):
        (tmp_path / name).touch()
        assert recognise(str(tmp_path / name)).settings["kind"] == "tabular"
    (tmp_path / "a.tsv").touch()
    with pytest.raises(InputError, match=r"a\.tsv': separates its fields by tabs"):
        recognise(str(tmp_path / "a.tsv"))


def test_every_file_of_a_folder_of_genomes_is_a_class_or_named(fasta):
    for name in ("EAST_.fas", "WEST.FASTA", "UP.fa.xz", "DOWN.Fna.bz2"):
        (fasta / name).write_text(">n1\nACGT\n")
    not_read = ["IN.fasta.zip", "OUT.faa", "notes.txt", ".DS_Store", "Thumbs.db"]
    for name in not_read:
        (fasta / name).touch()
    (fasta / "more.fasta").mkdir()
    [settings] = draft("mine", str(fasta), repeats=3)["datasets"].values()
    assert settings["classes"] == ["DOWN", "EAST_", "NORTH", "SOUTH", "UP", "WEST"]
    assert settings["split"]["seeds"] == [1, 2, 3]
    found = recognise(str(fasta))
    assert set(found.not_read) == {*not_read, "more.fasta"}
    assert found.not_read[-2:] == (".DS_Store", "Thumbs.db"), "hidden files last"
    (fasta / "NORTH.fa").write_text(">n1\nACGT\n")
    with pytest.raises(InputError, match="several files for the class NORTH"):
        recognise(str(fasta))


def test_files_of_mnist_and_cifar_are_recognised(tmp_path):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "train-images-idx3-ubyte.gz").touch()
    (tmp_path / "cifar").mkdir()
    (tmp_path / "cifar" / "data_batch_1.bin").touch()
    (tmp_path / "cifar-10-binary.tar.gz").touch()
    found = [recognise(str(tmp_path / name)) for name in ("digits", "cifar")]
    found.append(recognise(str(tmp_path / "cifar-10-binary.tar.gz")))
    assert [each.settings["source"]["type"] for each in found] == ["idx", "cifar", "cifar"]
    for name in ("digits", "cifar"):
        Experiment(draft("mine", str(tmp_path / name)), "mine.yaml")


@pytest.mark.parametrize(
    ("names", "reason", "remedy"),
    [
        (["data_batch_1", "batches.meta"], "neither MNIST nor CIFAR-10", "by hand"),
        (["emnist-letters-train-images-idx3-ubyte.gz"], "neither MNIST nor CIFAR-10", "by hand"),
        (["A.fasta", "B.txt"], "one class only, A; not read are B.txt", ".fasta"),
        (["S C.fasta", "B.fasta"], "S C.fasta.*gives a class the name 'S C'", "S-C.fasta"),
        (["A.txt", "B.txt"], "is not a folder of FASTA files", ".fasta"),
        (["1.jpg", "2.jpg", "labels.csv"], "no folder for each class", "move the pictures"),
    ],
)
def test_data_in_another_usual_form_are_refused_with_what_to_do(tmp_path, names, reason, remedy):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=reason) as refused:
        recognise(str(tmp_path))
    assert remedy in refused.value.remedy


def test_sides_of_pictures_are_no_classes(tmp_path, pictures):
    for side in ("Training", "Testing"):
        shutil.copytree(pictures, tmp_path / "all" / side)
    found = recognise(str(tmp_path / "all"))
    assert found.settings["source"] == {"type": "folders", "folder": str(tmp_path / "all")}


def test_a_variable_in_the_path_is_kept_and_expanded_and_what_is_not_recognised_is_refused(
    table, monkeypatch, tmp_path
):
    monkeypatch.setenv("FLOWERS", str(table))
    [settings] = draft("mine", "$FLOWERS")["datasets"].values()
    assert settings["source"]["path"] == "$FLOWERS"
    with pytest.raises(InputError, match="NOT_SET is not set"):
        recognise("$NOT_SET")
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        with pytest.raises(InputError, match=r"data: .*Remedy: name"):
            recognise(str(tmp_path / name))


@pytest.mark.parametrize(
    ("data", "strategy", "alone", "workloads"),
    [
        ("pictures", "ddp-gloo", "torch-single", ["resnet34"]),
        ("fasta", "ddp-gloo", "torch-single", ["virus-cnn"]),
        ("table", "jax-gloo", "jax-single", ["mlp"]),
    ],
)
def test_ranks_of_an_engine_are_compared_with_one_process_of_it(
    data, strategy, alone, workloads, request
):
    path = str(request.getfixturevalue(data))
    settings = draft("mine", path, strategies=[strategy])
    assert {each["strategy"] for each in settings["references"]} == {alone}
    assert list(settings["workloads"]) == workloads
    runs = Experiment(settings, "mine.yaml").runs
    assert {run.strategy for run in runs} == {alone, strategy}


def test_every_strategy_makes_a_valid_experiment():
    engines = WORKLOADS["virus-cnn"].engines
    strategies = [name for name in STRATEGIES if engine_name(name) in engines]
    settings = draft("mine", SIMULATED, strategies=strategies, layouts=["1x2", "1x4"])
    runs = Experiment(settings, "mine.yaml").runs
    assert {run.strategy for run in runs} == set(strategies)
    assert {run.layout for run in runs if run.strategy == "wrapped-single"} == {"1x1"}
    assert settings["variants"]["threads"] == {"cores_per_process": 4}
    # One process cannot have the cores of several nodes.
    settings = draft("mine", SIMULATED, layouts=["2x1"])
    assert list(settings["variants"]) == ["tuned"] and Experiment(settings, "mine.yaml")
    with pytest.raises(ValueError, match="NODESxPROCS"):
        draft("mine", SIMULATED, layouts=["2"])


def test_every_workload_for_such_data_is_possible(fasta, table, pictures):
    paths = {"genomes": fasta, "tabular": table, "images": pictures}
    for name, workload in WORKLOADS.items():
        if workload.data_kind in paths:
            settings = draft("mine", str(paths[workload.data_kind]), workload=name)
            assert list(settings["workloads"]) == [name]
            Experiment(settings, "mine.yaml")


def test_a_workload_in_a_folder_is_named_by_its_path(own_workload):
    settings = draft("mine", SIMULATED, workload=str(own_workload), epochs=2)
    [(name, workload)] = settings["workloads"].items()
    assert name == "my_workload"
    assert (workload["path"], workload["epochs"]) == (str(own_workload), 2)
    Experiment(settings, "mine.yaml")
    assert "The folder of the workload." in text(settings)


def test_a_workload_that_does_not_exist_or_reads_other_data_is_refused(table):
    with pytest.raises(InputError, match="is neither a workload nor a folder"):
        draft("mine", SIMULATED, workload="nothing")
    with pytest.raises(InputError, match="no workload of the experiment reads"):
        Experiment(draft("mine", str(table), workload="virus-cnn"), "mine.yaml")


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1))
def test_any_text_in_a_path_is_kept(path):
    settings = draft("mine", SIMULATED)
    settings["datasets"][SIMULATED]["source"] = {"type": "files", "folder": path}
    assert yaml.safe_load(text(settings)) == settings
