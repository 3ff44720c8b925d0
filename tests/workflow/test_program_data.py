"""A program reads the user's own files; a change in them is noticed, and a move is none."""

from __future__ import annotations

import json

import numpy as np
import yaml

from tests import folders
from tests.programs import experiment_on

RUN = "results/own/runs/photos/reads/processes/1x1/plain/native/rep1/run.json"


def test_a_changed_file_is_noticed_and_a_moved_folder_is_not_measured_again(
    tmp_path, snakemake, dry_run
):
    photos = tmp_path / "photos"
    (photos / "cat").mkdir(parents=True)
    (photos / "cat" / "1.png").write_text("one")
    (tmp_path / "code").mkdir()
    command = ["sh", "-c", "cat {data.photos}/cat/1.png > {output}/read"]
    reads = {"command": command, "directory": str(tmp_path / "code")}
    datasets = {"photos": {"kind": "files", "paths": {"photos": str(photos)}}}
    settings = experiment_on("own", {"reads": reads}, datasets=datasets)
    served = {"ESCALA_MEASURE_AGAIN": "0"}
    done = snakemake(RUN, experiment=settings, **served)
    said = done.stdout + done.stderr
    assert "because nothing similar was measured here before" in said
    assert (tmp_path / RUN).with_name("output").joinpath("read").read_text() == "one"
    first = json.loads((tmp_path / RUN).read_text())
    assert first["status"] == "ok"

    settings["datasets"]["photos"]["paths"]["photos"] = str(photos.rename(tmp_path / "moved"))
    snakemake(RUN, experiment=settings, **served)
    assert json.loads((tmp_path / RUN).read_text())["started"] == first["started"]
    _, planned = dry_run(RUN, experiment=settings)
    assert "Nothing to be done" in planned

    (tmp_path / "moved" / "cat" / "1.png").write_text("two")
    snakemake(RUN, experiment=settings, **served)
    assert (tmp_path / RUN).with_name("output").joinpath("read").read_text() == "two"


def test_the_arrays_of_the_guide_are_trained_on(tmp_path, snakemake, dry_run, registries):
    folders.copied(tmp_path, "network", "arrays.yaml")
    random = np.random.default_rng(0)
    sides = {
        side: (random.integers(0, 255, (rows, 4, 3), np.uint8), random.integers(0, 3, rows))
        for side, rows in (("train", 96), ("test", 20))
    }
    arrays = {f"{n}_{s}": a for s, pair in sides.items() for n, a in zip("xy", pair, strict=True)}
    np.savez(tmp_path / "data.npz", **arrays)
    settings = yaml.safe_load((tmp_path / "arrays.yaml").read_text())
    settings["workloads"]["network"]["path"] = "network"
    settings["configurations"][1]["strategy"] = "horovod-gloo"
    # A program is given the same arrays.
    settings["workloads"]["program"] = {
        "command": ["sh", "-c", "cp {data.split}/train/x.npy {output}"],
        "directory": "network",
        "data_kind": "arrays",
    }
    settings["configurations"].append({"strategy": "processes", "layouts": ["1x1"]})
    settings["datasets"]["pictures"]["train"] = {
        "inputs": {"x": str(tmp_path / "data.npz:x_train")},
        "targets": str(tmp_path / "data.npz:y_train"),
    }
    runs = "results/arrays/runs/pictures"
    trained = f"{runs}/network/single/1x1/plain/native/rep1/run.json"
    copied = f"{runs}/program/processes/1x1/plain/native/rep1/run.json"
    settings["predict"] = {"inputs": {"new": str(tmp_path / "new.npy")}}
    np.save(tmp_path / "new.npy", sides["test"][0])
    predicted = "results/arrays/predictions/pictures/{}/1x1/plain/native/rep1/new.tsv"
    snakemake(predicted.format("network/single"), copied, experiment=settings)
    run = json.loads((tmp_path / trained).read_text())
    assert (run["status"], run["training"]["train_rows"], run["training"]["test_rows"]) == (
        "ok", 86, 20,
    )  # fmt: skip
    assert run["evaluation"]["classes"] == ["cat", "dog", "horse"]
    read = np.load((tmp_path / copied).with_name("output") / "x.npy")
    assert read.shape == (86, 4, 3)
    assert {row.tobytes() for row in read} <= {row.tobytes() for row in sides["train"][0]}

    table = (tmp_path / predicted.format("network/single")).read_text().splitlines()
    assert table[0].split("\t")[:2] == ["row", "predicted"] and len(table) == 21
    code, planned = dry_run(predicted.format("program/processes"), experiment=settings)
    assert code and "program is a program: it keeps no model to classify with" in planned
    assert "Traceback" not in planned


def test_what_is_changed_while_it_runs_is_said_and_not_stored(tmp_path, snakemake):
    """The program changes its data, as a user would who edits them meanwhile."""
    for name in ("code", "data"):
        (tmp_path / name).mkdir()
    script, table = tmp_path / "code" / "train.sh", tmp_path / "data" / "rows.csv"
    table.write_text("1\n")
    script.write_text("test -e $2 || { touch $2; echo 2 >> $1; }\n")
    command = ["sh", "train.sh", "{data.rows}/rows.csv", str(tmp_path / "once")]
    edited = {"command": command, "directory": str(tmp_path / "code")}
    datasets = {"rows": {"kind": "files", "paths": {"rows": str(tmp_path / "data")}}}
    settings = experiment_on("own", {"edited": edited}, datasets=datasets)
    run = tmp_path / "results/own/runs/rows/edited/processes/1x1/plain/native/rep1/run.json"
    store = tmp_path / "store"
    again = {"ESCALA_MEASURE_AGAIN": "0", "ESCALA_STORE": str(store)}
    for call, changes in enumerate(["{data.rows} changed since this call began", ""]):
        snakemake(str(run.relative_to(tmp_path)), experiment=settings, **again)
        found = json.loads(run.read_text())
        assert changes in " ".join(found["program"]["notes"])
        assert len(list(store.glob("entries/*/*/*.json"))) == call, "of the second call only"
