"""An experiment in three calls: `prepare`, `runs`, and `report`, as around a job of a cluster."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from escala.core.files import read_json
from tests.workflow.conftest import SIMULATED, experiment_of
from tests.workflow.measured import FAKE

RUNS = "results/small/runs/small/virus-cnn"


def _started(folder: Path) -> dict[str, str]:
    """Return when each run was measured, by its folder."""
    files = sorted((folder / RUNS).rglob("run.json"))
    return {
        str(each.parent.relative_to(folder / RUNS)): read_json(each)["started"] for each in files
    }


def test_data_and_report_need_no_run_and_measure_none(snakemake, tmp_path, imported):
    imported(FAKE)
    experiment = experiment_of("small", SIMULATED, repeats=2)
    # The same configurations as those of the scaling study.
    experiment["configurations"] = experiment["configurations"][:2]
    experiment["scaling"] = {
        "kind": "strong", "strategies": ["horovod-mpi"], "layouts": ["1x1", "1x2"],
    }  # fmt: skip
    snakemake("prepare", experiment=experiment)
    assert (tmp_path / "results/small/data/small/split4/dataset.json").exists()
    assert not _started(tmp_path)
    nothing = snakemake("report", fails=True)
    assert "has no run yet" in nothing.stderr and "escala submit" in nothing.stderr

    one = "single/1x1/tuned/native/rep1"
    snakemake(f"{RUNS}/{one}/run.json")
    before = _started(tmp_path)
    assert set(before) == {one}
    # A change, after which a call without a target would measure the run again.
    changed = experiment | {"oversubscribe": False}
    reported = snakemake("report", experiment=changed)
    assert _started(tmp_path) == before
    assert "1 of 4 runs are measured" in reported.stdout
    for name in ("index.html", "study.html"):
        assert (tmp_path / "results/small" / name).exists()
    assert len(pd.read_csv(tmp_path / "results/small/tables/runs.csv")) == 1

    # As another report would, before it draws all figures once more.
    snakemake("runs", "results/small/tables/runs.csv", experiment=experiment)
    assert len(_started(tmp_path)) == 4
    assert pd.read_csv(tmp_path / "results/small/tables/runs.csv")["repeat"].nunique() == 2
