"""A noise floor and a pilot in the workflow: real Snakemake, made-up times."""

from __future__ import annotations

import json
import re

import pandas as pd

from escala.report.history import add
from tests.workflow.conftest import SIMULATED, experiment_of
from tests.workflow.measured import FAKE

RUNS = "results/small/runs/small/virus-cnn"


def repeats_of(folder, strategy: str, layout: str) -> list[str]:
    place = folder / RUNS / strategy / layout / "tuned" / "native"
    return sorted(path.parent.name for path in place.glob("*/run.json"))


def test_a_pilot_is_followed_by_as_many_runs_as_it_asks_for(snakemake, dry_run, tmp_path, imported):
    """Once, in the same call, each reference twice in each repeat, and never more than allowed."""
    imported(FAKE)
    experiment = experiment_of(
        "small",
        SIMULATED,
        configurations=[
            {"strategy": name, "layouts": ["1x1"]} for name in ("single", "wrapped-single")
        ],
        noise_floor=True,
        pilot={"half_width": "5 %", "repeats": 2, "at_most": 3},
    )
    del experiment["repeats"]
    table = "results/small/tables/pilot.csv"
    before = snakemake("--dry-run", experiment=experiment)
    assert "small: a pilot sets the number of repeats. The estimates are for 3." in before.stdout
    # Two configurations and the second runs of one, three times.
    assert "Estimated training time of 9 runs" in before.stdout
    # With a store, which must not take the second run of a reference for the first.
    kept = {"ESCALA_STORE": str(tmp_path / "store"), "ESCALA_MEASURE_AGAIN": ""}
    snakemake(table, **kept)
    again = [f"duplicate.rep{n}" for n in range(1, 4)]
    assert repeats_of(tmp_path, "single", "1x1") == [*again, *(f"rep{n}" for n in range(1, 4))]
    assert repeats_of(tmp_path, "wrapped-single", "1x1") == [f"rep{n}" for n in range(1, 4)]
    plan = json.loads((tmp_path / "results/small/pilot.json").read_text())
    assert plan["repeats"] == 3 < plan["comparisons"][0]["needed"]
    (row,) = pd.read_csv(tmp_path / table).itertuples()
    assert (row.strategy, row.pilot_matches, row.repeats, row.cut) == ("wrapped-single", 2, 3, True)
    runs = [json.loads(path.read_text()) for path in tmp_path.glob(f"{RUNS}/**/run.json")]
    assert len(runs) == 9 and {run["session"] for run in runs} == {runs[0]["session"]}
    repeats = [
        run["repeat"] for run in sorted(runs, key=lambda run: (run["started"], run["repeat"]))
    ]
    assert repeats == sorted(repeats), "all runs of a repeat take turns, those of the pilot too"
    (noise,) = pd.read_csv(tmp_path / "results/small/tables/noise.csv").itertuples()
    # A copy of the first run would have a ratio of 1.
    assert noise.matches == 3 and round(noise.ratio, 6) == 1.02
    assert "Nothing to be done" in dry_run(table)[1]
    # Sessions of a history are an input of the page.
    add(tmp_path / ".escala" / "history", [tmp_path / "results" / "small"])
    assert re.search(r"page +1\n", dry_run(table)[1])
