"""Drafts of experiments, for data and for programs: each is valid, and its file is the draft."""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from escala.command import parse
from escala.core import plugins
from escala.core.errors import InputError
from escala.core.variables import CALLERS_PATH
from escala.draft import data, pair, program, study, sweep
from escala.draft.data import SIMULATED, recognise
from escala.draft.file import Draft
from escala.draft.file import text as text_of_draft
from escala.draft.guess import guess_patterns
from escala.draft.program import add_files, add_options, file_of
from escala.engines import engine_name
from escala.experiment import Experiment
from escala.measure.plan import words_of
from escala.programs.marks import OutputSearch
from escala.programs.program import Program
from escala.runtime import slurm
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS
from tests.conftest import ROOT


def draft(name: str, path: str, **options: object) -> dict:
    return data.draft(name, recognise(path), **options).settings


def text(settings: dict) -> str:
    return text_of_draft(Draft(settings, {}, []))


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
    ("fixture", "kind", "name", "workload"),
    [
        ("fasta", "genomes", "my-viruses", "virus-cnn"),
        ("table", "tabular", "flowers", "mlp"),
        ("pictures", "images", "pets", "cifar-cnn"),
    ],
)
def test_data_are_recognised_and_give_a_valid_experiment_in_a_file(
    fixture, kind, name, workload, request
):
    path = str(request.getfixturevalue(fixture))
    found = recognise(path)
    assert (found.settings["kind"], found.name, found.workload) == (kind, name, workload)
    settings = draft("mine", path)
    content = text(settings)
    assert yaml.safe_load(content) == settings
    assert list(yaml.safe_load(content)) == list(settings), "keys have the order of the draft"
    experiment = Experiment(settings, "mine.yaml")
    by_steps = {run.workload for run in experiment.runs if WORKLOADS[run.workload].takes_steps}
    assert by_steps == {workload}
    one = {("single", "1x1", "tuned"), ("single", "1x1", "threads")}
    measured = {(run.strategy, run.layout, run.variant) for run in experiment.runs}
    assert measured >= one | {("horovod-mpi", "1x2", "tuned")}
    assert {(r["strategy"], r["layout"], r["variant"]) for r in settings["references"]} == one
    ranks = draft("mine", path, strategies=["ddp-gloo"])
    assert {run.strategy for run in Experiment(ranks, "mine.yaml").runs} == {
        "ddp-gloo",
        "torch-single",
    }
    assert {reference["strategy"] for reference in ranks["references"]} == {"torch-single"}


@pytest.fixture
def for_arrays(tmp_path, registries):
    folder = tmp_path / "network"
    folder.mkdir()
    settings = "settings: {type: object, additionalProperties: false, properties: {}}\n"
    (folder / "workload.yaml").write_text(f"description: One.\ndata_kind: arrays\n{settings}")
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


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["arr_0", "arr_1"], "arr_0, arr_1, and their names do not show"),
        (["x", "x_train", "y_train"], "x and .*x_train would both be the input"),
        (["img-1", "img_1", "y_train"], "img-1 and .*img_1 would both be the input"),
    ],
)
def test_arrays_whose_names_tell_too_little_are_refused(tmp_path, names, reason):
    np.savez(tmp_path / "a.npz", **{name: [0, 1] for name in names})
    with pytest.raises(InputError, match=reason):
        recognise(str(tmp_path / "a.npz"))


@pytest.mark.parametrize(
    ("file", "kind", "form"),
    [
        ("a.CSV.xz", "tabular", "csv"),
        ("a.tsv.gz", "tabular", "csv"),
        ("digits/train-images-idx3-ubyte.gz", "images", "idx"),
        ("cifar/data_batch_1.bin", "images", "cifar"),
    ],
)
def test_a_kind_is_recognised_by_names_of_files(tmp_path, file, kind, form):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    found = recognise(str(tmp_path / file.partition("/")[0])).settings
    assert (found["kind"], found["source"]["type"]) == (kind, form)


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


@pytest.mark.parametrize(
    ("names", "reason", "remedy"),
    [
        (["data_batch_1", "batches.meta"], "neither MNIST nor CIFAR-10", "by hand"),
        (["A.fasta", "B.txt"], "one class only, A; not read are B.txt", ".fasta"),
        (["S C.fasta", "B.fasta"], "S C.fasta.*gives a class the name 'S C'", "S-C.fasta"),
        (["A.txt", "B.txt"], "is not a folder of FASTA files", ".fasta"),
        (["1.jpg", "2.jpg", "labels.csv"], "no folder for each class", "move the pictures"),
        ([], "data", "name"),
    ],
)
def test_data_in_another_usual_form_are_refused_with_what_to_do(tmp_path, names, reason, remedy):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=reason) as refused:
        recognise(str(tmp_path))
    assert remedy in refused.value.remedy


def test_a_variable_in_the_path_is_kept_and_expanded(table, monkeypatch, tmp_path):
    monkeypatch.setenv("FLOWERS", str(table))
    [settings] = draft("mine", "$FLOWERS")["datasets"].values()
    assert settings["source"]["path"] == "$FLOWERS"
    for path, reason in (
        ("$NOT_SET", "NOT_SET is not set"),
        (str(tmp_path / "missing"), r"data: .*Remedy: name"),
    ):
        with pytest.raises(InputError, match=reason):
            recognise(path)


@pytest.fixture
def new(tmp_path, monkeypatch, capsys):
    """Return a function from the words of `escala new` to the dataset written, and the output."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[dict, str]:
        monkeypatch.setattr(sys, "argv", ["escala", "new", *words])
        module, arguments = parse(["new", *words])
        module.run(arguments)
        [path] = Path("experiments").iterdir()
        [dataset] = yaml.safe_load(path.read_text())["datasets"].values()
        return dataset, capsys.readouterr().out

    return call


def samples(**columns: object) -> pd.DataFrame:
    """Return a table of 40 samples with two features and, last, a class."""
    values = np.random.default_rng(2).normal(size=(40, 2))
    frame = pd.DataFrame(values, columns=["u", "v"]).assign(outcome=["yes", "no"] * 20)
    for place, (name, column) in enumerate(columns.items()):
        frame.insert(place, name, column)
    return frame


@pytest.mark.parametrize("option", ["--labels", "--label", "--drop"])
def test_simulated_genomes_take_no_option_of_a_table(new, option):
    with pytest.raises(InputError, match=f"{option}.*is not for simulated"):
        new("--data", "simulated", option, "x")


def test_a_table_of_that_name_is_not_taken_for_simulated_genomes(new):
    samples().to_csv("simulated.csv", index=False)
    new("--data", "simulated.csv")
    assert "simulated genomes" not in Path("experiments/simulated.yaml").read_text()


def test_columns_and_rows_that_a_run_would_refuse_are_left_out(new):
    frame = samples(name=[f"s{n}" for n in range(40)], row=range(40), site="Rome", blank="")
    frame.loc[3, "u"], frame.loc[7, "outcome"], frame.loc[9, "site"] = None, None, None
    frame.to_csv("study.tsv", sep="\t", index=False)
    dataset, output = new("--data", "study.tsv")
    assert sorted(dataset["source"]["drop"]) == ["blank", "name", "row", "site"]
    assert dataset["missing"] == "drop"
    for sentence in (
        "name, which differs in each row",
        "row, which numbers the rows",
        "site, which has one value",
        "blank, which has no value",
        "2 of 40 rows lack a value, 1 of them a class",
    ):
        assert sentence in output
    # A value is missing in most rows, and can be filled.
    frame = samples()
    frame.loc[:30, "v"] = None
    frame.to_csv("filled.csv", index=False)
    Path("experiments/study.yaml").unlink()
    assert new("--data", "filled.csv")[0]["missing"] == "mean"


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (samples(sex=["f", "m"] * 20), [], "'sex': text.*--drop sex"),
        (samples().iloc[:, ::-1], [], "'outcome': text.*the class is u.*--label COLUMN"),
        (samples(), ["--label", "age"], "'age': is not a column"),
        (samples(), ["--labels", "t.csv"], "--labels.*is not for t.csv"),
        (samples().replace("no", "yes"), [], "fewer than two classes"),
        (samples()[:0], [], "holds no rows"),
        (samples()[:1], [], "fewer than two classes"),
        (samples().assign(u=1, v=2), [], "leaves no feature"),
        (samples().assign(outcome=["rare"] + ["no"] * 39), [], "rare: 1 rows.*too few"),
        (samples().assign(outcome=["Yes", "yes "] + ["no", "yes"] * 19), [],
         "1 row of Yes cannot be split.*Yes and yes may be one class"),
        (samples().replace({"u": {samples()["u"][5]: "3.l5"}}), [], "line 7, column 1, u.*3.l5"),
        (samples().assign(outcome=np.linspace(0, 1, 40)), [], "a regression"),
    ],
)  # fmt: skip
def test_a_table_that_a_run_would_refuse_is_refused_and_nothing_is_written(
    frame, options, message, new, tmp_path
):
    frame.to_csv("t.csv", index=False)
    with pytest.raises(InputError, match=message):
        new("--data", "t.csv", *options)
    assert not Path("experiments").exists()


@pytest.fixture
def metadata(tmp_path, monkeypatch):
    """Write `all.fasta` and return its table, with columns that may be the class or not."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(3)
    sequences = ["".join(random.choice(list("ACGT"), 60)) for _ in range(24)]
    records = (f">s{n}|2020-01-0{n % 4 + 1}\n{text}\n" for n, text in enumerate(sequences))
    Path("all.fasta").write_text("".join(records))
    numbers = range(2, 25)
    return pd.DataFrame(
        {
            "strain": [f"s{n}" for n in numbers],
            "date": [f"2020-01-0{n % 4 + 1}" for n in numbers],
            "length": [n * 100 for n in numbers],
            "clade": ["20.A" if n % 2 else "19 B" for n in numbers],
            "lab": ["one"] * 22 + ["two"],
        }
    )


def test_the_class_of_one_fasta_file_is_a_column_with_few_values(new, metadata):
    metadata.loc[5, "clade"] = "21"
    metadata.to_csv("t.tsv", sep="\t", index=False)
    dataset, output = new("--data", "all.fasta", "--labels", "t.tsv")
    source = {"type": "labelled", "file": "all.fasta", "labels": "t.tsv", "label": "clade"}
    assert dataset["source"] == source
    assert dataset["classes"] == ["19-B", "20-A"]
    assert "22 of 24 records have a row in t.tsv, by its column strain." in output
    assert "2 records without a row: s0|2020-01-01, s1|2020-01-02." in output
    assert "1 row without a record: s24." in output
    assert "1 class with fewer than 4 records: 21 (1)." in output


def test_genomes_that_occur_twice_in_a_class_are_counted(new, metadata):
    metadata.to_csv("t.csv", index=False)
    path = Path("all.fasta")
    lines = path.read_text().split("\n")
    lines[9] = lines[5]  # s4 and s2, both of 19-B
    path.write_text("\n".join(lines))
    output = new("--data", "all.fasta", "--labels", "t.csv", "--label", "clade")[1]
    assert "1 record with the sequence of another one" in output


def test_the_user_chooses_among_several_columns(new, metadata, monkeypatch):
    metadata.assign(host=["bat", "cat", "cat"] * 7 + ["cat", "bat"]).to_csv("t.csv", index=False)
    with pytest.raises(InputError, match=r"clade \(2 values\), host \(2 values\).*--label COLUMN"):
        new("--data", "all.fasta", "--labels", "t.csv")
    answers = iter(["nothing", "host"])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    assert new("--data", "all.fasta", "--labels", "t.csv")[0]["classes"] == ["bat", "cat"]


def test_a_wrong_option_ends_the_questions(new, monkeypatch):
    answers = {"Your data": SIMULATED}
    monkeypatch.setattr("builtins.input", lambda question: answers.get(question[:9], ""))
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    with pytest.raises(InputError, match="nosuch"):
        new("--strategies", "nosuch")


@pytest.mark.parametrize(
    ("old", "changed", "options", "message"),
    [
        ("", "", [], "is one FASTA file.*--labels metadata.tsv"),
        (">s3", ">s2", ["--labels", "t.csv"], "all.fasta.*several records.*s2"),
        ("A", "L", ["--labels", "t.csv"], "not nucleotides.*first in line"),
        ("", "", ["--labels", "t.csv", "--label", "lab"], "fewer than two classes have 4.*one 2"),
        ("", "", ["--labels", "t.csv", "--label", "no"], "'no': is not a column"),
        ("", "", ["--labels", "t.csv", "--drop", "lab"], "--drop.*is not for all.fasta"),
    ],
)
def test_one_fasta_file_that_a_run_would_refuse_is_refused(
    old, changed, options, message, new, metadata
):
    metadata.to_csv("t.csv", index=False)
    path = Path("all.fasta")
    path.write_text(path.read_text().replace(old, changed) if old else path.read_text())
    with pytest.raises(InputError, match=message):
        new("--data", "all.fasta", *options)
    assert not Path("experiments").exists()


def test_the_commands_of_the_guide_draft_its_files(new, metadata):
    for name, packed in (("sequences.fasta.gz", gzip.open), ("sequences.fasta", open)):
        with packed(name, "wt") as file:
            file.write(Path("all.fasta").read_text())
    for name in ("metadata.csv", "sequences.csv"):
        metadata.rename(columns={"clade": "Host"}).to_csv(name, index=False)
    frame = samples(responder=["y", "n"] * 20, sex=["f", "m"] * 20, site=["N", "S"] * 20)
    frame.drop(columns="outcome").to_csv("study.tsv", sep="\t", index=False)
    guides = [
        (ROOT / "docs" / page).read_text() for page in ("start/your-data.md", "how-to/ncbi.md")
    ]
    calls = re.findall(r"^uv run escala (new --data s.+)", "\n".join(guides), re.MULTILINE)
    assert len(calls) == 3
    for call in calls:
        _, *words = shlex.split(call)
        new(*words)
        [path] = Path("experiments").iterdir()
        assert Experiment(yaml.safe_load(path.read_text()), path).runs
        path.unlink()


def test_a_folder_of_genomes_is_read_before_it_is_drafted(new, fasta, tmp_path):
    with pytest.raises(InputError, match=r"SOUTH.*the same genome is in NORTH"):
        new("--data", str(fasta))
    assert not Path("experiments").exists()


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


def test_a_workload_may_be_named_or_in_a_folder(own_workload, table):
    settings = draft("mine", SIMULATED, workload=str(own_workload), epochs=2)
    [(name, workload)] = settings["workloads"].items()
    assert (name, workload["path"], workload["epochs"]) == ("my_workload", str(own_workload), 2)
    Experiment(settings, "mine.yaml")
    with pytest.raises(InputError, match="is neither a workload nor a folder"):
        draft("mine", SIMULATED, workload="nothing")
    with pytest.raises(InputError, match="no workload of the experiment reads"):
        Experiment(draft("mine", str(table), workload="virus-cnn"), "mine.yaml")


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1))
def test_any_text_in_a_path_is_kept(path):
    settings = draft("mine", SIMULATED)
    settings["datasets"][SIMULATED]["source"] = {"type": "files", "folder": path}
    assert yaml.safe_load(text(settings)) == settings


@pytest.fixture
def drafted(tmp_path, monkeypatch):
    """Return a function from a call's words to its draft, in a folder with scripts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("escala.draft.program.available_cores", lambda: list(range(4)))
    monkeypatch.setattr("escala.draft.program.hardware_threads", lambda core: [core])
    monkeypatch.setattr("escala.draft.program.available_gpus", list)
    monkeypatch.setattr("escala.draft.study.available_cores", lambda: list(range(4)))
    monkeypatch.setattr(slurm, "smallest_node", lambda: None)
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv(CALLERS_PATH, path)
    parser = argparse.ArgumentParser()
    add_options(parser)

    def make(call: str):
        options, _, command = call.partition("-- ")
        if "--sizes" in options:
            words = ["study", *shlex.split(options)]
            monkeypatch.setattr(sys, "argv", ["escala", *words])
            arguments = parse(words)[1]
            arguments.nodes = study.count_nodes(arguments.sizes)
            return study.draft(shlex.split(command), arguments)
        return program.draft(shlex.split(command), parser.parse_args(shlex.split(options)))

    return make


TORCHRUN = "torchrun --nnodes 2 --nproc-per-node 2 train.py"


@pytest.mark.parametrize(
    ("call", "layouts", "cores"),
    [
        # All cores of the smallest node, or as many processes as the launcher is told.
        ("--sizes 4,1,2 --torch -- python train.py", ["1x8", "2x8", "4x8"], 1),
        (f"--sizes 1,2 -- {TORCHRUN}", ["1x2", "2x2"], 4),
        (f"--sizes 1,2 -- srun --ntasks-per-node 1 {TORCHRUN}", ["1x2", "2x2"], 4),
        ("--sizes 1,2 --processes 4 --torch -- python train.py", ["1x4", "2x4"], 2),
        ("--sizes 1x1,2x4,1x4 --torch -- python train.py", ["1x1", "1x4", "2x4"], 2),
        # This machine has four cores.
        ("--sizes 1x1,1x4 --torch -- python train.py", ["1x1", "1x4"], 1),
    ],
)
def test_a_study_has_its_sizes_on_whole_nodes(call, layouts, cores, drafted, monkeypatch):
    monkeypatch.setattr(slurm, "smallest_node", lambda: slurm.NodeSize(8, 16, 0))
    found = drafted(call)
    experiment = Experiment(found.settings, file_of(found.name))
    runs = [run for run in experiment.runs if run.repeat == 1]
    assert [run.layout for run in runs] == layouts
    assert {run.strategy for run in runs} == {"torch-ddp"}
    assert {run.declared.variant["cores_per_process"] for run in runs} == {cores}
    assert {run.declared.workload.program().command for run in runs} == {("python", "train.py")}
    assert yaml.safe_load(text_of_draft(found)) == found.settings
    # The smallest size is what the others are compared with.
    references = {run.layout: [one.layout for one in experiment.references_of(run)] for run in runs}
    assert references == {name: layouts[:1] * (name != layouts[0]) for name in layouts}
    # A rule of whole runs would judge nothing where runs end after some steps.
    times = ("steps", drafted(call.replace("--sizes", "--whole --sizes")).settings["scaling"])
    assert found.settings["scaling"]["rules"]["time"] == times[0] and "rules" not in times[1]


@pytest.mark.parametrize(
    ("call", "refused"),
    [
        ("--sizes 1,2 -- python train.py", "--torch"),
        ("--sizes 1x1,1x9 --torch -- python train.py", "1x9"),
    ],
)
def test_a_study_that_cannot_be_made_is_refused(call, refused, drafted):
    with pytest.raises(InputError) as error:
        drafted(call)
    assert refused in str(error.value)


@pytest.mark.parametrize("text", ["2", "1,1", "1,0", "1,two", "1,2x", ""])
def test_sizes_of_a_study_are_two_numbers_or_layouts(text):
    with pytest.raises(argparse.ArgumentTypeError):
        study.parse_sizes(text)


@pytest.mark.parametrize(
    ("named", "expected"),
    [(None, (4, 8, 0)), ("gpu", (16, 16, 3)), ("missing", None)],
)
def test_the_smallest_node_is_that_of_the_partition_of_jobs(named, expected, monkeypatch):
    lines = ["cpu*|2:4:2|(null)", "cpu*|1:4:2|", "gpu|1:16:1|gpu:a100:2(S:0),gpu:1", "no answer"]
    monkeypatch.setattr(slurm, "ask", lambda words: "\n".join(lines))
    for name in ("SLURM_JOB_PARTITION", "SBATCH_PARTITION"):
        monkeypatch.delenv(name, raising=False)
    if named:
        monkeypatch.setenv("SBATCH_PARTITION", named)
    assert slurm.smallest_node() == expected


def compared(found) -> list[tuple[str, str, str]]:
    """Return strategy, layout and variant of each configuration of a draft, which is valid."""
    experiment = Experiment(found.settings, file_of(found.name))
    return [run.configuration[:3] for run in experiment.runs if run.repeat == 1]


PYTHON = "python train.py"
ACCELERATE = (
    "accelerate launch --num_processes {ranks} --num_machines {nodes} --machine_rank {node} "
    "--main_process_ip {address} --main_process_port {port} --mixed_precision no train.py"
)
MODULE = ACCELERATE.replace("accelerate launch", "python -m accelerate.commands.launch")
MODULE = MODULE.replace("train.py", "-m mine --num_processes 2")
OWN = "torchrun --nproc-per-node {ranks_of_node} train.py"


@pytest.mark.parametrize(
    ("call", "strategy", "command"),
    [
        ("-- './run it'", "single", "'./run it'"),
        ("-- 'python train.py --x 1'", "single", "python train.py --x 1"),
        ("-- python train.py {rank} {ranks}", "processes", "python train.py {rank} {ranks}"),
        ("--torch -- python train.py", "torch-ddp", PYTHON),
        ("--strategy horovod-gloo -- python train.py", "horovod-gloo", PYTHON),
        ("-- torchrun --standalone --nproc_per_node=8 train.py x", "torch-ddp", f"{PYTHON} x"),
        ("-- python -m torch.distributed.run --nproc-per-node 4 -m mine.train", "torch-ddp",
         "python -m mine.train"),
        ("-- mpirun -x A=1 -np 4 --bind-to core -x B python train.py", "mpi", f"env A=1 {PYTHON}"),
        ("-- srun -n 4 --mpi=pmix ./simulate", "mpi", "./simulate"),
        ("-- horovodrun -np 4 --gloo python train.py", "horovod-gloo", PYTHON),
        (f"-- {OWN}", "own-launcher", OWN),
        ("-- accelerate launch --mixed_precision no train.py --num_processes 4", "own-launcher",
         f"{ACCELERATE} --num_processes 4"),
        ("-- A=1 B=2 ./simulate", "single", "env A=1 B=2 ./simulate"),
        # A launcher that is not the first word, and one that is no launcher but a script's word.
        ("-- poetry run torchrun --nproc_per_node=4 train.py", "torch-ddp", f"poetry run {PYTHON}"),
        # Options that nobody has heard of are the launcher's, and so are their words.
        ("-- torchrun --unheard-of 3 train.py --unheard-of 3", "torch-ddp",
         f"{PYTHON} --unheard-of 3"),
        ("-- mpirun --mca btl self --new-option 3 env A=1 ./simulate 5", "mpi",
         "env A=1 ./simulate 5"),
        ("-- nice python train.py torchrun", "single", "nice python train.py torchrun"),
        ("-- env A=1 deepspeed --num_gpus {ranks_of_node} train.py", "own-launcher",
         "env A=1 deepspeed --num_gpus {ranks_of_node} train.py"),
        # This launcher hands each process its number.
        ("-- python -m torch.distributed.launch --nproc_per_node=auto train.py x", "torch-ddp",
         f"{PYTHON} --local-rank={{local_rank}} x"),
        ("-- python -u -m torch.distributed.launch --nproc_per_node=4 train.py -m x", "torch-ddp",
         "python -u train.py --local-rank={local_rank} -m x"),
        ("-- python -m torch.distributed.launch --use_env train.py x", "torch-ddp", f"{PYTHON} x"),
        # Launchers whose numbers are replaced, with a subcommand, as a module, and by short names.
        ("-- python -m accelerate.commands.launch --mixed_precision no -m mine --num_processes 2",
         "own-launcher", MODULE),
        ("-- A=1 fabric run --devices=4 --accelerator cpu train.py --devices 2", "own-launcher",
         "env A=1 fabric run --devices {ranks_of_node} --num_nodes {nodes} --node_rank {node} "
         "--main_address {address} --main_port {port} --accelerator cpu train.py --devices 2"),
        ("-- deepspeed --num-gpus 4 train.py", "own-launcher",
         "deepspeed --num_gpus {ranks_of_node} --master_port {port} train.py"),
        ("-- composer -n 4 train.py", "own-launcher",
         "composer --nproc {ranks_of_node} --world_size {ranks} --node_rank {node} "
         "--master_addr {address} --master_port {port} train.py"),
        ("-- ray job submit --working-dir . -- python train.py", "single", PYTHON),
    ],
)  # fmt: skip
def test_a_call_gives_the_configurations_that_answer_it(call, strategy, command, drafted):
    Path("run it").touch()
    found = drafted(call)
    one, threads = (strategy, "1x1", "tuned"), (strategy, "1x1", "threads")
    processes = [(strategy, "1x4", "tuned")] if strategy != "single" else []
    assert compared(found) == [one, *processes, threads]
    # The reference is the strategy's own one process, and threads stand alongside it.
    assert [tuple(each.values()) for each in found.settings["references"]] == [one, threads]
    [workload] = found.settings["workloads"].values()
    assert workload["command"] == command
    guessed = strategy != "single" and call.startswith("-- ")
    assert any(strategy in each for each in found.sentences) == guessed, "what is guessed is said"
    runs = Experiment(found.settings, "e.yaml").runs
    lines = {words_of(run).partition(":")[0] for run in runs}
    assert lines == {f"Run {name}" for name in found.settings["workloads"]}, "none is no data"


@pytest.mark.parametrize(
    ("command", "strategy", "layout", "cores"),
    [
        ("python train.py", "single", "1x1", 4),
        # What its script is guessed to need does not count: it is typed without it.
        ("python ddp.py", "single", "1x1", 4),
        ("torchrun --nproc-per-node 2 ddp.py", "torch-ddp", "1x2", 1),
        ("torchrun --nproc-per-node 1 ddp.py", "torch-ddp", "1x1", 1),
        # More than there are cores.
        ("torchrun --nproc-per-node 8 ddp.py", "torch-ddp", "1x4", 1),
        ("python -m torch.distributed.run --nproc_per_node=3 ddp.py", "torch-ddp", "1x3", 1),
        ("mpirun -np 2 python train.py -n 3", "mpi", "1x2", 1),
        ("torchrun ddp.py", "torch-ddp", "1x4", 1),
    ],
)
def test_a_side_of_a_pair_is_as_it_is_typed(command, strategy, layout, cores, drafted, tmp_path):
    (tmp_path / "train.py").write_text("import lib")
    (tmp_path / "lib.py").touch()
    (tmp_path / "ddp.py").write_text("import torch\ntorch.distributed.init_process_group()")
    options = argparse.ArgumentParser()
    add_options(options)
    python = f"{sys.executable} train.py --x 1"
    sides = [
        pair.draft_side(shlex.split(each), options.parse_args([])) for each in (python, command)
    ]
    found = pair.pair({"a": sides[0], "b": sides[1]}, "mine", "Which?")
    experiment = Experiment(found.settings, "e.yaml")
    first, second = (run for run in experiment.runs if run.repeat == 1)
    assert first.configuration[:3] == ("single", "1x1", "a")
    assert second.configuration[:3] == (strategy, layout, "b")
    assert [run.declared.variant["cores_per_process"] for run in (first, second)] == [4, cores]
    assert found.settings["repeats"]["threshold"] == 0
    assert experiment.references_of(second) == [first] and not experiment.references_of(first)
    programs = [run.declared.workload.program() for run in (first, second)]
    assert programs[0].command == ("python", "train.py", "--x", "1")
    assert programs[1].command[-1] == command.split()[-1]
    # Both have the files of both: a change of one measures the pair again.
    assert programs[0].files == programs[1].files
    assert {"train.py", "lib.py"} <= set(programs[0].files)


@pytest.mark.parametrize(
    ("call", "swept", "commands", "rows"),
    [
        ("--torch -- python train.py --b {rows_of_rank}", "rows=64,16",
         ["--b {rows_of_rank}"] * 2, [16, 64]),
        ("-- python train.py --size=8 -v", "size=16,64", ["--size=16 -v", "--size=64 -v"], [1, 1]),
        ("-- python train.py --size 8 --sizes 9", "size=16,64",
         ["--size 16 --sizes 9", "--size 64 --sizes 9"], [1, 1]),
        ("-- python train.py -n 1", "n=2,3", ["-n 2", "-n 3"], [1, 1]),
        ("-- python train.py --b_size 32", "b-size=2,3", ["--b_size 2", "--b_size 3"], [1, 1]),
        ("-- python train.py --b-size={rows}", "b_size=2,3", ["--b-size=2", "--b-size=3"],
         [64, 64]),
        ("-- python train.py {epochs}", "epochs=2,3", ["{epochs}"] * 2, [1, 1]),
    ],
)  # fmt: skip
def test_a_sweep_is_a_workload_of_each_value(call, swept, commands, rows, drafted, tmp_path):
    (tmp_path / "train.py").touch()
    name, values = sweep.parse(swept)
    found = sweep.vary(drafted(call), (name, values))
    workloads = found.settings["workloads"]
    assert [*workloads] == [f"train-{name}-{value}" for value in values]
    ends = [workload["command"].removeprefix("python train.py ") for workload in workloads.values()]
    assert ends == commands
    assert [each.get("batch", {}).get("rows", 1) for each in workloads.values()] == rows
    epochs = values if name == "epochs" else [None, None]
    assert [each.get("epochs") for each in workloads.values()] == epochs
    assert found.settings["repeats"]["minutes"] == 2 * program.MINUTES
    # Every value has the same configurations.
    runs = Experiment(found.settings, "e.yaml").runs
    first, second = (
        {run.configuration for run in runs if run.workload == name} for name in workloads
    )
    assert first == second and len(first) >= 2
    files = [each["files"] for each in workloads.values()]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("command", "name", "remedy"),
    [
        ("python train.py", "rows", "write {rows} where"),
        ("python train.py --size 8", "epochs", "write {epochs} where"),
        ("sh -c 'python train.py'", "width", "write --width 2 where"),
        ("python train.py --width --size 8", "width", "write --width 2 where"),
    ],
)
def test_a_sweep_that_the_command_would_not_see_is_refused(
    command, name, remedy, drafted, tmp_path
):
    (tmp_path / "train.py").touch()
    draft = drafted(f"-- {command}")
    with pytest.raises(InputError, match=remedy) as refused:
        sweep.vary(draft, (name, [2, 3]))
    assert refused.value.value == name


def test_a_sweep_leaves_the_quotes_of_a_command_of_a_shell(drafted):
    draft = sweep.vary(drafted("-- sh -c 'python train.py --width 4'"), ("width", [2, 3]))
    commands = [shlex.split(each["command"]) for each in draft.settings["workloads"].values()]
    assert commands == [["sh", "-c", f"python train.py --width {n}"] for n in (2, 3)]


def compared_times(configuration, reference, verdict, low=None, futile=None) -> dict:
    return {
        "configuration": configuration, "reference": reference, "verdict": verdict,
        "ratio": 0.5, "interval": [0.4, None], "interval_of_session": [low, 2.0],
        "futile": futile,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["rows", "rows=", "rows=16", "rows=16,16", "rows=1,x", "=1,2"])
def test_a_sweep_without_values_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        sweep.parse(text)


@pytest.mark.parametrize(
    ("verdicts", "of_values", "said"),
    [
        # Against one process, and against threads.
        ([("slower", "slower"), ("faster", "slower"), ("faster", "faster")],
         ["do not pay", "do not pay", "pay"], "begin to pay between 64 and 256 rows."),
        ([("slower", "slower"), ("not distinguishable", "faster"), ("faster", "faster")],
         ["do not pay", "not decided", "pay"],
         "begin to pay between 16 and 256 rows; not decided at 64 rows"),
        ([("faster", "faster")] * 2 + [("slower", "faster")],
         ["pay", "pay", "do not pay"], "no longer pay between 64 and 256 rows."),
        ([("faster", "faster")] * 3, ["pay"] * 3, "pay at 16, 64, 256 rows, and fewer may pay."),
        ([("slower", "faster")] * 3, ["do not pay"] * 3,
         "do not pay at 16, 64, 256 rows, and more may pay."),
        ([("faster", "faster"), ("slower", "slower"), ("faster", "faster")],
         ["pay", "do not pay", "pay"], "pay at 16, 256 rows, and not at 64."),
        ([("no verdict", None)] * 3, ["not decided"] * 3, "may pay or not; not decided at 16, 64"),
    ],
)  # fmt: skip
def test_a_sweep_tells_from_which_value_on_processes_pay(verdicts, of_values, said, drafted):
    found = sweep.parse("rows=16,64,256")
    draft = sweep.vary(drafted("--torch -- python train.py --b {rows}"), found)
    experiment, comparisons = Experiment(draft.settings, "e.yaml"), []
    one, threads, several = ("1x1", "tuned"), ("1x1", "threads"), ("1x4", "tuned")
    for workload, (of_one, of_threads) in zip(draft.settings["workloads"], verdicts, strict=True):
        for of, reference, verdict in (
            (threads, one, "faster"), (several, one, of_one), (several, threads, of_threads),
        ):  # fmt: skip
            sides = [
                {"workload": workload, "layout": layout, "variant": variant}
                for layout, variant in (of, reference)
            ]
            comparisons.append(compared_times(*sides, verdict))
    rows = sweep.judge({"comparisons": comparisons, "configurations": []}, found)
    assert [row["value"] for row in rows] == [16, 64, 256]
    assert [row["verdict"] for row in rows] == of_values
    assert f"Four processes {said}" in sweep.sentence(rows, experiment)
    heading, *lines = sweep.table(rows, experiment)
    assert len(lines) == 6 and "four processes" in heading
    assert [line.split("  ")[0] for line in lines] == ["16", "16", "64", "64", "256", "256"]
    assert [("one process" in line, "four threads" in line) for line in lines] == [
        (True, False), (False, True)
    ] * 3  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "low", "futile", "repeats", "verdict", "advice"),
    [
        (7, 0.8, None, "--minutes 3", "not decided", "--minutes"),
        (7, 0.8, None, "--repeats 7", "not decided", "--repeats"),
        (7, 0.8, "no more than sessions differ by", "--minutes 3", "not decided", None),
        (7, 0.96, "no saving above 5 %", "--minutes 3", "no saving above 5 %", None),
        (0, None, None, "--minutes 3", "failed", None),
    ],
)
def test_time_is_advised_where_a_sweep_lacked_it(
    runs, low, futile, repeats, verdict, advice, drafted
):
    found = sweep.parse("rows=16,64")
    draft = sweep.vary(drafted(f"{repeats} --torch -- python train.py --b {{rows}}"), found)
    one, several = (
        {"workload": "train-rows-64", "layout": layout, "variant": "tuned"}
        for layout in ("1x1", "1x4")
    )
    kind = "not distinguishable" if runs else None
    later = compared_times(several, one, kind, low, futile)
    earlier = {"workload": "train-rows-16"}
    first = compared_times(several | earlier, one | earlier, "slower")
    content = {
        "comparisons": [first, later],
        "configurations": [
            one | {"runs": 7},
            several | {"runs": runs},
            one | {"runs": 7} | earlier,
        ],
    }
    rows = sweep.judge(content, found)
    assert [row["verdict"] for row in rows] == ["do not pay", verdict]
    experiment = Experiment(draft.settings, "e.yaml")
    text = sweep.sentence(rows, experiment)
    assert f"{verdict} at 64 rows" in text
    assert [option for option in ("--minutes", "--repeats") if option in text] == (
        [advice] if advice else []
    )
    assert (f"results/{experiment.name}/summary.md" in text) == (not runs)


def test_a_sweep_in_which_nothing_was_compared_is_not_decided(drafted):
    found = sweep.parse("rows=16,64")
    draft = sweep.vary(drafted("--torch -- python train.py --b {rows}"), found)
    rows = sweep.judge({"comparisons": [], "configurations": []}, found)
    assert [row["verdict"] for row in rows] == ["not decided"] * 2
    experiment = Experiment(draft.settings, "e.yaml")
    assert "not decided at 16, 64 rows" in sweep.sentence(rows, experiment)
    assert len(list(sweep.table(rows, experiment))) == 3


@pytest.mark.parametrize(
    ("gpus", "options", "layouts", "cores"),
    [
        (2, "", ["1x1", "1x2"], (2, 4)),
        (8, "", ["1x1", "1x4"], (1, 4)),
        (2, "--nodes 2", ["1x1", "1x2", "2x2"], (2, 4)),
        (0, "--processes 2", ["1x1", "1x2"], (1, 2)),
    ],
)
def test_each_gpu_has_a_process_and_its_part_of_the_cores(
    gpus, options, layouts, cores, drafted, monkeypatch
):
    monkeypatch.setattr("escala.draft.program.available_gpus", lambda: ["one"] * gpus)
    found = drafted(f"{options} --torch -- python train.py")
    assert compared(found) == [
        *(("torch-ddp", layout, "tuned") for layout in layouts), ("torch-ddp", "1x1", "threads"),
    ]  # fmt: skip
    variants = found.settings["variants"].values()
    assert tuple(each["cores_per_process"] for each in variants) == cores


@pytest.mark.parametrize(
    ("source", "strategy"),
    [
        ("import horovod.tensorflow.keras as hvd", "horovod-mpi"),
        ("import torch.distributed as dist\ndist.init_process_group('gloo')", "torch-ddp"),
        ("import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()", "tf-config"),
        # How many it starts, the script decides.
        ("import torch\ntorch.distributed.init_process_group()\nmp.spawn(main)", "single"),
        ("from mpi4py import MPI\nimport horovod.torch", "single"),
    ],
)
def test_what_a_script_imports_and_calls_names_its_strategy(source, strategy, drafted, tmp_path):
    (tmp_path / "train.py").write_text(source)
    found = drafted("-- python train.py")
    assert compared(found)[0][0] == strategy
    assert any("train.py" in each and strategy in each for each in found.sentences) == (
        strategy != "single"
    )
    assert (found.as_typed is not None) == (strategy != "single"), (
        "what is compared is not as it is typed"
    )
    # What the user says is taken in any case.
    assert compared(drafted("--strategy processes -- python train.py"))[0][0] == "processes"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("-- lone.py", "python lone.py"),
        ("-- mpirun --unheard-of simulate", "not certain which of its words is the program"),
        ("-- mpirun -n 1 python a.py : -n 1 python b.py", "several programs"),
        ("--launcher -- torchrun --nproc-per-node 4 train.py", "{ranks_of_node}"),
        ("--processes 1 -- python train.py", "(4 available)"),
        ("-- python train.py {row}", "command: '{row}': there is no such placeholder"),
        ("-- python train.py {data.reads}", "--data reads=PATH"),
        ("--data reads=none -- python train.py {data.reads}", "none"),
        ("--python ./venv -- python train.py", "venv/bin/python"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, said, drafted, tmp_path):
    (tmp_path / "lone.py").touch()
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").touch()
    with pytest.raises(InputError, match=r"Remedy: ") as refused:
        compared(drafted(call))
    assert said in str(refused.value)


def test_the_file_is_the_draft_and_names_what_the_command_asks_for(drafted, tmp_path):
    (tmp_path / "reads").mkdir()
    (tmp_path / "reads" / "a.txt").write_text("a")
    (tmp_path / "train.py").touch()
    found = drafted(
        "--torch --rows 128 --epochs 5 --repeats 3 --regex 'loss (?P<loss>.*)' --nodes 2 "
        "--processes 3 --data reads=reads --variable CACHE "
        "-- python train.py --batch {rows_of_rank} --epochs {epochs} 'a \"b\"' {data.reads}"
    )
    Experiment(found.settings, file_of(found.name))
    content = text_of_draft(found)
    assert yaml.safe_load(content) == found.settings
    assert file_of(found.name).name == "escala-train.yaml" and found.name == "train"
    [workload] = found.settings["workloads"].values()
    assert workload["batch"] == {"rows": 128, "per": "global"} and workload["epochs"] == 5
    assert workload["environment"]["variables"] == ["CACHE"]
    assert found.settings["repeats"] == 3
    assert found.settings["configurations"][0]["layouts"] == ["1x1", "1x3", "2x3"]
    words = Program.of(workload, tmp_path, "here").command
    assert words[-2:] == ('a "b"', "{data.reads}")
    # What is not named is not set, and what the command does not ask for has no effect.
    less = drafted("--rows 8 --epochs 2 --processes 9 -- nice python -u -m examples.train.__main__")
    [workload] = less.settings["workloads"].values()
    assert less.name == "train" and not {"batch", "epochs", "epoch_ends"} & workload.keys()
    for notice in ("--rows has no effect", "--epochs has no effect", "this machine has 4 cores"):
        assert notice in " ".join(less.sentences)
    assert "--nodes has no effect" in " ".join(drafted("--nodes 2 -- python -m one").sentences)
    file_of(found.name).touch()
    with pytest.raises(InputError, match=r"exists, and.*--output own/NAME.yaml"):
        found.content(file_of(found.name), False, "--output own/NAME.yaml")


def test_files_are_the_script_and_what_it_imports(drafted, tmp_path):
    for name in ("train.py", "model.py", "notes.txt", "unused.py", "parts/__init__.py",
                 "parts/inner.py", "parts/deep.py", "conf[1].json"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "train.py").write_text("import os, model\nfrom parts import inner\n")
    (tmp_path / "parts" / "inner.py").write_text("from .deep import x\n")
    [workload] = drafted("-- python train.py --conf conf[1].json").settings["workloads"].values()
    assert workload["files"] == [
        "conf[[]1].json", "model.py", "parts/__init__.py", "parts/deep.py", "parts/inner.py",
        "train.py",
    ]  # fmt: skip
    [workload] = drafted("-- python -m parts.inner").settings["workloads"].values()
    assert workload["files"] == ["parts/__init__.py", "parts/deep.py", "parts/inner.py"]


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("python prep.py && python train.py", "&&"),
        ("python prep.py\npython train.py", "\\n"),
        ('python train.py --out "$HOME/x"', "$"),
        ("python train.py data/*.csv", "*"),
        ("python train.py # the best one", "#"),
    ],
)
def test_a_text_for_a_shell_is_refused_with_a_call_of_it(text, sign, drafted, tmp_path):
    with pytest.raises(InputError) as refused:
        drafted(f"-- {shlex.quote(text)}")
    assert f"'{sign}'" in refused.value.reason
    remedy = refused.value.remedy.partition("let a shell run all: ")[2]
    assert shlex.split(remedy) == ["sh", "-c", text]
    [workload] = drafted(f"-- {remedy}").settings["workloads"].values()
    assert Program.of(workload, tmp_path, "").command == ("sh", "-c", text)
    with pytest.raises(InputError):  # As in the file of an experiment.
        Program.of({"command": text}, tmp_path, "")


def test_signs_that_belong_to_an_argument_stay(drafted, tmp_path):
    words = ["python", "train.py", "|", "a;b", "$x", "it's ~", "a&b", "c\\d", "*", "{1,2}", "#"]
    [workload] = drafted(f"-- {shlex.join(words)}").settings["workloads"].values()
    assert Program.of(workload, tmp_path, "").command == tuple(words)
    [workload] = drafted(f"-- {shlex.quote(shlex.join(words))}").settings["workloads"].values()
    assert Program.of(workload, tmp_path, "").command == tuple(words)
    with pytest.raises(InputError, match="&&"):
        drafted("-- python prep.py '&&' python train.py")
    # As in a README, of which a text has several lines.
    lines = {"command": "python train.py \\\n  --x 1 \\\r\n  --y 2\n"}
    asked = ("python", "train.py", "--x", "1", "--y", "2")
    assert Program.of(lines, tmp_path, "").command == asked


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ("taskset -c 0", ""),
        ("A=1 /usr/bin/taskset -a 0x3", "env A=1 "),
        ("nice numactl -C 0 --membind 0", "nice "),
        ("numactl -i all", "numactl -i all "),
        ("env MKL_NUM_THREADS=1 A=2", "env A=2 "),
        ("env -u B timeout -s KILL 9 taskset 3", "env -u B timeout -s KILL 9 "),
    ],
)
def test_a_binding_to_cores_decides_no_configuration(before, left, drafted, tmp_path):
    found = drafted(f"-- {before} python train.py --taskset -c 0")
    [workload] = found.settings["workloads"].values()
    assert workload["command"] == f"{left}python train.py --taskset -c 0"
    binds = "numactl -i" not in before and "THREADS" not in before
    assert any("cores of its own" in each for each in found.sentences) == binds
    assert any("_THREADS=" in each for each in found.sentences) == ("THREADS" in before)
    with pytest.raises(InputError, match="the same cores") if binds else nullcontext():
        Program.of({"command": f"env {before} python train.py"}, tmp_path, "")


@pytest.fixture
def two(tmp_path, monkeypatch, drafted):
    """Two interpreters: the first of the user's PATH, and one of an environment elsewhere."""
    for place in ("first", "venv/bin"):
        (tmp_path / place).mkdir(parents=True)
        python = tmp_path / place / "python"
        python.write_text(f"#!/bin/sh\necho {python}\n")
        python.chmod(0o755)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    monkeypatch.setenv(CALLERS_PATH, f"{tmp_path}/first:/usr/bin:/bin")
    # As this project puts its own first for itself.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    return tmp_path / "first" / "python", tmp_path / "venv" / "bin" / "python"


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "A=1 python train.py",
        "nice -n 5 python train.py",
        "mpirun -x A=1 -n 2 python train.py",
    ],
)
def test_the_interpreter_is_the_users_whatever_stands_before_it(command, two, drafted):
    found = drafted(f"-- {command}")
    [workload] = found.settings["workloads"].values()
    assert workload["environment"]["python"] == str(two[0])
    assert any(str(two[0]) in each for each in found.sentences)


def test_a_program_of_the_user_is_not_called_to_find_its_interpreter(two, drafted, tmp_path):
    wrapper = tmp_path / "wrap.sh"
    wrapper.write_text(f'#!/bin/sh\ntouch {tmp_path}/called\n"$@"\n')
    wrapper.chmod(0o755)
    found = drafted(f"-- {wrapper} python train.py")
    [workload] = found.settings["workloads"].values()
    assert workload["command"] == f"{wrapper} python train.py"
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("quote", ["", "'"])
def test_a_word_may_be_longer_than_the_name_of_a_file(quote, two, drafted):
    command = f"python train.py --config {'x' * 300}"
    [workload] = drafted(f"-- {quote}{command}{quote}").settings["workloads"].values()
    assert workload["command"] == command


@pytest.mark.parametrize(
    "first",
    [
        "#!{python}",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''",
        "no first line",
    ],
)
def test_a_launcher_of_an_environment_keeps_its_interpreter(first, two, drafted, tmp_path):
    launcher = tmp_path / "venv" / "bin" / "torchrun"
    launcher.write_text(first.format(python=two[1]) + "\nimport torch\n")
    launcher.chmod(0o755)
    found = drafted(f"-- {launcher} --nproc-per-node 2 train.py")
    [workload] = found.settings["workloads"].values()
    assert workload["environment"]["python"] == str(two[1])
    assert workload["command"] == PYTHON and found.settings["configurations"][0]["strategy"] == (
        "torch-ddp"
    )
    for call in (f"nice {launcher} --nproc-per-node 2 t.py", f"{launcher} -n {{ranks_of_node}} x"):
        [workload] = drafted(f"-- {call}").settings["workloads"].values()
        assert workload["environment"]["python"] == str(two[1])


def test_files_that_a_trial_saw_are_files_and_data_are_named(drafted, tmp_path):
    for name in ("train.py", "a[1].json", *(f"images/{n}.png" for n in range(30))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with open(tmp_path / "large.bin", "wb") as file:
        file.truncate(2**25)
    outside = tmp_path.parent / "settings.toml"
    outside.touch()
    found = drafted("-- python train.py")
    read = ["a[1].json", "large.bin", str(outside), *(f"images/{n}.png" for n in range(30))]
    said = list(add_files(found, read))
    [workload] = found.settings["workloads"].values()
    assert workload["files"] == sorted([str(outside), "a[[]1].json", "train.py"])
    assert Program.of(workload, tmp_path, "").files
    assert len(said) == 2 and "images" in said[1] and "large.bin" in said[1]
    # A later call knows of them before its trial, if they are there.
    Experiment(found.settings, file_of(found.name))
    file_of(found.name).write_text(text_of_draft(found))
    later = drafted("-- python train.py")
    assert later.settings == found.settings
    outside.unlink()
    later = drafted("-- python train.py")
    [workload] = later.settings["workloads"].values()
    assert workload["files"] == ["a[[]1].json", "train.py"]


@pytest.mark.parametrize(
    ("call", "processes"),
    [
        ("-- torchrun --nproc_per_node=2 train.py", 2),
        ("-- torchrun --nproc-per-node 3 train.py --nproc-per-node 2", 3),
        ("-- mpirun -np 2 python train.py", 2),
        ("-- accelerate launch --num_processes 3 train.py", 3),
        ("-- fabric run --devices=2 train.py", 2),
        ("--launcher -- deepspeed --num_gpus 2 train.py", 2),
        # One is no comparison, more than the cores is too many, and an option counts more.
        ("-- torchrun --nproc_per_node 1 train.py", 4),
        ("-- torchrun --nproc_per_node 9 train.py", 4),
        ("--processes 3 -- torchrun --nproc_per_node 2 train.py", 3),
    ],
)
def test_the_processes_of_a_launcher_are_the_most_that_are_compared(call, processes, drafted):
    found = drafted(call)
    assert [layout for _, layout, _ in compared(found)] == ["1x1", f"1x{processes}", "1x1"]
    assert found.settings["variants"]["threads"]["cores_per_process"] == processes


@pytest.mark.parametrize(
    ("source", "gpus", "siblings", "processes", "threads"),
    [
        # A process for each GPU of a script that may use them.
        ("import torch\nnet.to('cuda')", 3, 1, 3, 4),
        ("import keras", 3, 1, 3, 4),
        ("import torch\nnet.to('cpu')", 3, 1, 4, 4),
        ("import sklearn", 3, 1, 4, 4),
        # A process for each physical core, unless there is one only.
        ("import torch", 0, 2, 2, 2),
        ("import torch", 0, 4, 4, 4),
    ],
)
def test_resources_are_those_that_the_script_can_use(
    source, gpus, siblings, processes, threads, drafted, tmp_path, monkeypatch
):
    (tmp_path / "train.py").write_text(source)
    monkeypatch.setattr("escala.draft.program.available_gpus", lambda: ["one"] * gpus)
    monkeypatch.setattr(
        "escala.draft.program.hardware_threads",
        lambda core: [c for c in range(4) if c % (4 // siblings) == core % (4 // siblings)],
    )
    monkeypatch.setattr("escala.draft.program.cpu_quota", lambda: 3.5)
    monkeypatch.setattr("os.getloadavg", lambda: (1.25, 9.0, 9.0))
    found = drafted("--torch -- python train.py")
    assert [layout for _, layout, _ in compared(found)] == ["1x1", f"1x{processes}", "1x1"]
    assert found.settings["variants"]["threads"]["cores_per_process"] == threads
    [line] = [each for each in found.sentences if "This machine has" in each]
    physical = 4 // siblings
    assert re.search(rf"\b{physical} core", line) and ("4 hardware" in line) == (siblings > 1)
    assert all(part in line for part in ("3.5 cores", "load of 1.2"))
    assert (f"{gpus} GPU" in line) == (gpus > 0)


#: Outputs with lines that count, how many of them do, and the last number of a step or an epoch.
OUTPUTS = {
    "a word and a number": ("iter {n}: loss {loss}, time 5.1ms", "step", 30, 29),
    "every hundredth step": ("iter_dt 5.{n}ms; iter {n}00: train loss {loss}", "step", 30, 2900),
    "a part of all batches": ("| epoch   1 |   {n}/ 29 batches | loss  {loss}", "step", 30, 29),
    "a bar": ("\r {n}%|███       | {n}/29 [00:01<00:08, 10.1it/s, loss={loss}]", "step", 30, 29),
    "a word before the number": ("Batch no {n} of 29, loss: {loss}", "step", 30, 29),
    "rows of an epoch": ("Train Epoch: 1 [{n}/29 ({n}%)]\tLoss: {loss}", "step", 30, 29),
    "epochs with a score": ("Epoch {n}, val_acc: {loss}", "epoch", 30, 29),
    "epochs without punctuation": ("Epoch {n}/29 loss {loss}", "epoch", 30, 29),
    "an epoch with words": ("Epoch {n} Train Loss {loss} after 3 s", "epoch", 30, 29),
    "steps without punctuation": ("step {n}/29 loss {loss}", "step", 30, 29),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_lines_that_count_are_found_in_an_output_among_others(name):
    form, event, number, last = OUTPUTS[name]
    counting = [form.format(n=n, loss=f"0.{90 - n}") for n in range(30)]
    others = ["loading 3 of 4 files", "Epoch 1/3", "saved after 2.5 s", "step: nothing"]
    output = "\n".join([*others, *counting, *others])
    patterns = guess_patterns(output)
    assert list(patterns) == [f"{event}_ends"]
    search = OutputSearch(patterns.get("epoch_ends"), patterns.get("step_ends"))
    search.feed(output.encode(), 0.0)
    search.end()
    assert [mark.event for mark in search.marks] == [event] * number
    assert search.marks[-1].number == last
    assert [mark.values.popitem()[1] for mark in search.marks][-1] == 0.61


@pytest.mark.parametrize(
    "output",
    [
        "loading 3 files\ndone in 3.2 s",
        "Epoch 1/3\nEpoch 2/3\nEpoch 3/3",  # headers
        "step 5 of the recipe\nstep 5 again\nstep 5",
        "accuracy 0.1\naccuracy 0.2\naccuracy 0.3",
    ],
)
def test_no_pattern_is_guessed_where_nothing_counts(output):
    assert guess_patterns(output) == {}
