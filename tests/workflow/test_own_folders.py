"""A workload, and a kind of datasets, in folders outside the project."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import yaml

from escala.core.files import sha256_file
from escala.experiment import folders
from tests.calls import python
from tests.folders import GUIDE, READER, changed, copied
from tests.folders import WORKLOAD as DENSE
from tests.workflow.conftest import SIMULATED, experiment_of, measured

OF_CLASSES = {"classification_reports", "confusion_matrices", "class_distribution", "splits"}
RUN = "results/mine/runs/simulated/words/mirrored/1x2/plain/native/rep1/run.json"


def test_the_workload_of_the_guide_is_checked_and_runs(own_workload, snakemake, dry_run):
    done = python("-m", "escala.command", "check", own_workload)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [line.split("  ")[0] for line in done.stdout.splitlines()]
    [shown] = re.findall(r"^```text\n(This workload can .*?)^```$", GUIDE.read_text(), re.M | re.S)
    # The page shows some of the lines.
    places = [answers.index(line.split("  ")[0]) for line in shown.splitlines() if line != "…"]
    assert len(places) > 2 and places == sorted(places)

    folder = own_workload.parent
    settings = yaml.safe_load((folder / "mine.yaml").read_text())
    settings["datasets"]["simulated"]["source"] |= {"records": SIMULATED["records"]}
    settings |= {"repeats": 1, "timeline": {"enabled": False}}
    settings["workloads"]["words"] |= {"path": "my_workload", "epochs": 2}
    # That ranks under MPI learn the same is among the answers.
    snakemake(RUN, experiment=settings)
    run = json.loads((folder / RUN).read_text())
    assert run["status"] == "ok"
    # 5 letters × 6 places × 8 words and their biases, and a dense layer to 5 classes.
    assert run["training"]["parameters"] == 5 * 6 * 8 + 8 + 8 * 5 + 5

    shutil.move(own_workload, folder / "elsewhere")
    settings["workloads"]["words"]["path"] = "elsewhere"
    _, planned = dry_run(RUN, experiment=settings)
    assert "Nothing to be done" in planned
    with open(folder / "elsewhere" / "letters.py", "a") as code:
        code.write("\nMORE = 6\n")
    _, planned = dry_run(RUN, experiment=settings)
    assert "Measure words on simulated" in planned, planned


def test_a_kind_of_datasets_stands_in_a_folder_of_its_own(tmp_path, snakemake, dry_run):
    copied(tmp_path, "blobs")
    shutil.move(tmp_path / "blobs", tmp_path / "points")
    (tmp_path / "dense").mkdir()
    for name, text in DENSE.items():
        (tmp_path / "dense" / name).write_text(text)
    settings = experiment_of("plane", SIMULATED)
    settings["kinds"] = {"blobs": {"path": str(tmp_path / "points")}}
    settings["datasets"] = {
        "plane": {"kind": "blobs", "points": 40, "spread": 0.2, "split": {"seeds": [4]}}
    }
    settings["workloads"] = {"flat": {"path": str(tmp_path / "dense")}}
    settings["configurations"] = [{"strategy": "single", "layouts": ["1x1"]}]
    (tmp_path / "points" / "reader.py").write_text(READER)
    rate = {"value": 0.5, "reference_batch": 10}
    training = {"epochs": 2, "batch": {"rows": 10, "per": "global"}, "learning_rate": rate}
    settings["workloads"]["flat"] |= training
    shown = "results/plane/summary.md"
    assert _figures(dry_run(shown, "--printshellcmds", experiment=settings)) >= OF_CLASSES
    scores = tmp_path / "dense" / "scores.py"
    scores.write_text("def score(targets, predictions, description): 1")
    figures = _figures(dry_run(shown, "--printshellcmds", experiment=settings))
    assert "seconds_per_epoch" in figures and not figures & OF_CLASSES
    scores.unlink()

    run = "results/plane/runs/plane/flat/single/1x1/tuned/native/rep1/run.json"
    snakemake(run, "results/plane/tables/classes.csv", experiment=settings)
    measured_run = json.loads((tmp_path / run).read_text())
    # The classes are five standard deviations from the line between them.
    assert (measured_run["status"], measured_run["evaluation"]["accuracy"]) == ("ok", 1)
    log = (tmp_path / run).parent / "ranks" / "rank0.log"
    assert "read by the kind's own reader" in log.read_text()
    data = tmp_path / "results/plane/data/plane"
    source = data / "source/points.npz"
    [locked] = pd.read_csv(data / "source/lock.tsv", sep="\t").to_dict("records")
    size = source.stat().st_size
    assert locked == {"file": source.name, "bytes": size, "sha256": sha256_file(source)}
    points, labels = (
        {side: np.load(data / f"split4/{side}_{name}.npy") for side in ("train", "test")}
        for name in ("point", "labels")
    )
    assert {side: len(rows) for side, rows in points.items()} == {"train": 60, "test": 20}
    together = np.unique(np.concatenate(list(points.values())), axis=0)
    np.testing.assert_array_equal(together, np.unique(np.load(source)["points"], axis=0))
    tables = tmp_path / "results/plane/tables"
    classes = pd.read_csv(tables / "classes.csv")
    for side in ("train", "test"):
        assert classes[side].tolist() == np.bincount(labels[side]).tolist()
    assert classes["records"].isna().all()
    assert pd.read_csv(tables / "leakage.csv").empty
    code, said = dry_run("results/plane/data/plane/codes.npy")
    assert code and "the kind blobs has no such file" in said
    settings["predict"] = {"inputs": {"new": str(tmp_path / "dense" / "model.py")}}
    new = run.replace("/runs/", "/predictions/").replace("run.json", "new.tsv")
    code, said = dry_run(new, experiment=settings)
    assert code and "the kind blobs offers no predictions" in said and "Traceback" not in said


def _figures(made: tuple[int, str]) -> set[str]:
    """Return the names of the figures that a dry run lists."""
    code, planned = made
    assert code == 0, planned
    [settings] = re.findall(r'"figures": (\[.*?\])', planned)
    return set(json.loads(settings))


LOSS = "tf.keras.losses.sparse_categorical_crossentropy(targets, outputs)"


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("layers.GlobalMaxPooling1D()", "layers.Global()", "pooled =", "AttributeError: module"),
        (LOSS, f"tf.reduce_mean({LOSS})", "def row_losses", "the shape () in place of (rows,)"),
    ],
    ids=["build", "scalar"],
)
def test_an_error_in_the_users_code_is_named_by_file_and_line(
    own_workload, small_split, request_for, tmp_path, old, new, line, reason
):
    code = own_workload / "model.py"
    changed(code, old, new)
    folders.add(folders.WORKLOADS, "words", str(own_workload), "test")
    number = next(n for n, text in enumerate(code.read_text().splitlines(), 1) if line in text)
    request = request_for("single", "1x1", workload="words", words=8)
    told = measured(request, small_split, tmp_path / "run", "failed")["reason"]
    assert f"{code}, line {number}: " in told
    assert reason in told


def test_what_a_run_would_ignore_ends_it(own_workload, small_split, request_for, tmp_path):
    """The check is not obligatory."""
    changed(own_workload / "model.py", "Adam(learning_rate)", "Adam(learning_rate, use_ema=True)")
    folders.add(folders.WORKLOADS, "words", str(own_workload), "test")
    request = request_for("single", "1x1", workload="words", words=8)
    told = measured(request, small_split, tmp_path / "run", "failed")["reason"]
    assert "model.py: use_ema averages" in told
    assert "Remedy: set use_ema=False" in told
