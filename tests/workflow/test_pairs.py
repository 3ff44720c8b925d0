"""A noise floor and a pilot in the workflow: real Snakemake, made-up times."""

from __future__ import annotations

import json
import re

import pandas as pd

from tests.workflow.conftest import SIMULATED, experiment_of

RUNS = "results/small/runs/small/virus-cnn"
#: In place of training: a run takes the seconds that its repeat, strategy and pair give, and
#: predicts every test row. The second run of a reference takes 2 % longer than the first.
MADE_UP = """
import sys

if "scripts.train" in sys.orig_argv:
    import numpy as np

    import escala.record.run as run
    from escala.core.files import read_json
    from escala.record.outcome import Outcome

    PARTS = (
        "startup", "loading", "build", "first_step", "first_prediction", "broadcast",
        "checkpoint", "averaging", "evaluation", "save",
    )

    def attempt(request, plan, data, ranks_folder, result, limit):
        fast = 1.0 + 0.1 * (request["repeat"] % 2)
        seconds = 2.0 if request["strategy"] == "single" else fast
        seconds *= 1.02 if request["pair"] else 1.0
        labels = np.load(data / "test_labels.npy")
        np.save(ranks_folder.parent / "predictions.npy", labels.astype(np.int64))
        classes = read_json(data / "dataset.json")["classes"]
        support = np.bincount(labels, minlength=len(classes)).tolist()
        all_right = dict.fromkeys(("precision", "recall", "f1"), 1.0)
        averages = all_right | {"support": len(labels)}
        result["ranks"] |= {"obtained": 1, "launcher": "local"}
        result["training"] |= {"optimizer": "RMSprop", "epochs_done": 1, "parameters": 1}
        result |= {
            "epochs": [{
                "epoch": 1, "steps": result["training"]["steps_per_epoch"], "rows": 70,
                "train_seconds": seconds, "epoch_wall_seconds": seconds, "loss": 1.0,
                "validation_seconds": 0.0, "accuracy": 0.5, "validation_accuracy": None,
            }],
            "seconds": dict.fromkeys(PARTS, 0.1) | {"train": seconds},
            "step_seconds": {
                "median": 0.1, "p90": 0.1, "count": 3,
                "per_rank": [{"rank": 0, "median": 0.1, "p90": 0.1}],
            },
            "samples_per_second": 70 / seconds,
            "evaluation": {
                "rows": len(labels), "accuracy": 1.0, "classes": classes,
                "per_class": {
                    name: all_right | {"support": number}
                    for name, number in zip(classes, support, strict=True)
                },
                "macro": averages, "weighted": averages,
                "confusion_matrix": np.diag(support).tolist(),
            },
            "weights_sha256": "0" * 64,
        }
        return Outcome("ok", None)

    run._attempt = attempt
"""


def repeats_of(folder, strategy: str, layout: str) -> list[str]:
    place = folder / RUNS / strategy / layout / "tuned" / "native"
    return sorted(path.parent.name for path in place.glob("*/run.json"))


def test_a_pilot_is_followed_by_as_many_runs_as_it_asks_for(snakemake, tmp_path, imported):
    """Once, in the same call, each reference twice in each repeat, and never more than allowed."""
    imported(MADE_UP)
    experiment = experiment_of(
        "small",
        SIMULATED,
        configurations=[
            {"strategy": name, "layouts": ["1x1"]} for name in ("single", "wrapped-single")
        ],
        noise_floor=True,
        pairs={"half_width": "5 %", "pilot": 2, "at_most": 3},
    )
    del experiment["repeats"]
    table = "results/small/tables/pairs.csv"
    before = snakemake("--dry-run", experiment=experiment)
    assert before.returncode == 0, before.stdout + before.stderr
    assert "small: a pilot decides on the repeats; the estimates are those of 3." in before.stdout
    # Two configurations and the second runs of one, three times.
    assert "Estimated training time of 9 runs" in before.stdout
    # With a store, which must not take the second run of a reference for the first.
    kept = {"ESCALA_STORE": str(tmp_path / "store"), "ESCALA_MEASURE_AGAIN": ""}
    done = snakemake(table, **kept)
    assert done.returncode == 0, done.stdout + done.stderr
    again = [f"again.rep{n}" for n in range(1, 4)]
    assert repeats_of(tmp_path, "single", "1x1") == [*again, *(f"rep{n}" for n in range(1, 4))]
    assert repeats_of(tmp_path, "wrapped-single", "1x1") == [f"rep{n}" for n in range(1, 4)]
    plan = json.loads((tmp_path / "results/small/pairs.json").read_text())
    assert plan["pairs"] == 3 < plan["comparisons"][0]["needed"]
    (row,) = pd.read_csv(tmp_path / table).itertuples()
    assert (row.strategy, row.pilot_pairs, row.pairs, row.cut) == ("wrapped-single", 2, 3, True)
    runs = [json.loads(path.read_text()) for path in tmp_path.glob(f"{RUNS}/**/run.json")]
    assert len(runs) == 9 and {run["session"] for run in runs} == {runs[0]["session"]}
    repeats = [
        run["repeat"] for run in sorted(runs, key=lambda run: (run["started"], run["repeat"]))
    ]
    assert repeats == sorted(repeats), "all runs of a repeat take turns, those of the pilot too"
    (noise,) = pd.read_csv(tmp_path / "results/small/tables/noise.csv").itertuples()
    # A copy of the first run would have a ratio of 1.
    assert noise.pairs == 3 and round(noise.ratio, 6) == 1.02
    later = snakemake("--dry-run", table)
    assert "Nothing to be done" in later.stdout + later.stderr
    assert not re.search("a pilot decides", later.stdout)
