"""A scaling study of an unchanged script over two nodes, from one call."""

from __future__ import annotations

import os

import pandas as pd
import pytest

from escala.core.files import read_json
from escala.engines import interpreter
from tests.calls import python
from tests.conftest import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.sweep]

BATCH, BATCHES = 16, 40_000
#: It would take hours, and imports nothing of Escala.
SCRIPT = f"""
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rows = TensorDataset(torch.randn({BATCH * BATCHES}, 4))
loader = DataLoader(rows, batch_size={BATCH}, sampler=DistributedSampler(rows))
model = DistributedDataParallel(torch.nn.Linear(4, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for [batch] in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""


def test_one_call_makes_the_document_of_a_script(put_up, tmp_path):
    put_up()
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["study", "--sizes", "1,2", "--repeats", "1", "--python", interpreter("torch")]
    words += ["--yes", "--json", "answer.json", "--", "torchrun", "--nproc-per-node", "1"]

    def call():
        path = f"{os.environ['PYTHONPATH']}{os.pathsep}{ROOT}"
        command = ["-m", "escala.command", *words, "train.py"]
        return python(*command, cwd=tmp_path, timeout=1500, variables={"PYTHONPATH": path})

    done = call()
    assert done.returncode == 0, done.stderr
    results = tmp_path / "results" / "train-study"
    runs = [read_json(file) for file in results.glob("runs/**/rep*/run.json")]
    assert len(runs) == 2 and {run["program"]["known_by"] for run in runs} == {"seen"}
    rows = pd.read_csv(results / "tables" / "scaling.csv").set_index("layout", drop=False)
    assert list(rows.index) == ["1x1", "2x1"]
    assert list(rows["global_batch"]) == [BATCH, 2 * BATCH]
    for run in runs:
        row, [window] = rows.loc[run["layout"]], run["epochs"]
        assert run["ranks"]["hosts"] == ["n1", "n2"][: row["nodes"]]
        assert run["ranks"]["launcher"] == "srun"
        # Each rank has its part of the batches, of which a few were made.
        steps = BATCHES // row["nodes"]
        assert run["training"]["steps_per_epoch"] == steps > window["steps"] >= 5
        seconds = window["train_seconds"] / window["steps"] * steps
        assert row["seconds_per_epoch"] == pytest.approx(seconds, rel=1e-6)
    # Runs that were ended tell nothing of whole ones, and one pair is no verdict.
    unknown = ["wall_seconds", "node_hours", "whole_speedup", "validation_seconds", "passes"]
    assert rows[unknown].isna().all(axis=None)
    assert rows.loc["2x1", "speedup"] > 0 and rows["node_memory_bytes"].gt(0).all()
    answer = read_json(tmp_path / "answer.json")
    document = (results / "study.md").read_text()
    assert answer["sentences"] and all(text in document for text in answer["sentences"])
    assert (tmp_path / answer["files"]["study"]).is_file()
    # The same call again has nothing to measure, and refuses nothing.
    again = call()
    assert again.returncode == 0 and "Submitted" in done.stderr, again.stderr
    assert "Submitted" not in again.stderr
