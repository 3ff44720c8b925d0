"""The answer of a drafted experiment as values: what `schemas/answer.schema.yaml` describes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.looks import judge_session
from escala.analysis.tables import read_table, records
from escala.core.readable import span
from escala.experiment import Experiment
from escala.experiment.runs import Configuration, layout_in_words
from escala.programs.marks import WHOLE
from escala.report.summary import read_sentences
from escala.report.tables.runs import NO_END

FORMAT = 1
_PARTS = ("workload", *Configuration._fields)
_MACHINE = {"processor": "cpu", "cores": "cores_available", "memory_bytes": "memory_bytes"}
_MACHINE |= {"gpus": "gpus", "kernel": "kernel"}


def read(experiment: Experiment, file: Path | None, threshold: float = 0.0) -> dict[str, Any]:
    """Return the answer that the report of an experiment holds.

    Parameters
    ----------
    file : of the experiment; None if it does not stay.
    threshold : see `escala.analysis.looks.judge_session`.
    """
    results = Path("results", experiment.name)
    names = ("runs", "configurations", "speedup", "best_use")
    runs, configurations, speedup, best = (read_table(results / "tables", name) for name in names)
    current = runs[runs["current"]]
    measured = current[current["status"] == "ok"]
    known_by = {tuple(row[part] for part in _PARTS): row["known_by"] for row in records(measured)}
    machine = records(measured.head(1))
    closest = records(best[best["closest"]].head(1))
    return {
        "format": FORMAT,
        "question": experiment.title,
        "sentences": [
            *read_sentences(results / "summary.md"),
            *describe_whole(configurations, runs),
        ],
        "configurations": [
            {
                **{part: row[part] for part in _PARTS},
                "runs": row["runs_ok"],
                "seconds": row["train_seconds_per_epoch"],
                "seconds_low": row["train_low_seconds_per_epoch"],
                "seconds_high": row["train_high_seconds_per_epoch"],
                "seconds_of": "run" if (current["known_by"] == WHOLE).any() else "epoch",
                "known_by": known_by.get(tuple(row[part] for part in _PARTS)),
                "whole_seconds": row["projected_seconds"],
                "reason": row["reason"],
            }
            for row in records(configurations)
        ],
        "comparisons": [
            {
                "configuration": {part: row[part] for part in _PARTS},
                "reference": {"workload": row["workload"]}
                | {part: row[f"reference_{part}"] for part in Configuration._fields},
                "ratio": row["ratio"],
                "interval": [row["ratio_low"], row["ratio_high"]],
                "ratio_of_session": row["session_ratio"],
                "interval_of_session": [row["session_ratio_low"], row["session_ratio_high"]],
                "level": row["level"],
                "paired_runs": row["matches"],
                "disturbed": row["disturbed_matches"],
                "verdict": row["verdict"],
                "verdict_of_session": judge_session(row, threshold),
                "futile": row["futile"],
                "reason": row["reason"],
            }
            for row in records(speedup[speedup["decides"]])
        ],
        "best": {part: row[part] for row in closest for part in (*_PARTS, "verdict")} or None,
        "machine": {key: row[column] for row in machine for key, column in _MACHINE.items()},
        "files": {
            "experiment": file and str(file),
            "page": str(results / "index.html"),
            "summary": str(results / "summary.md"),
            "tables": str(results / "tables"),
        },
    }


def describe_whole(configurations: pd.DataFrame, runs: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on the time of the whole training, if all that were measured have one.

    Parameters
    ----------
    configurations, runs : the tables.
    """
    rows = configurations[configurations["kind"] != "unavailable"]
    is_sweep = rows["workload"].nunique() > 1
    if rows.empty or is_sweep or rows["projected_seconds"].isna().any():
        return
    cores = runs.drop_duplicates([*CONFIGURATION]).set_index([*CONFIGURATION])["cores"]
    words = [
        layout_in_words(
            row["layout"],
            row["strategy"],
            cores[tuple(row[key] for key in CONFIGURATION)].partition(";")[0].count(",") + 1,
        )
        for row in records(rows)
    ]
    if len(set(words)) < len(words):  # Two commands, or changes of one.
        layouts, variants = (rows[key].to_list() for key in ("layout", "variant"))
        is_pair = len(set(variants)) == len(variants)
        words = [
            f"`{variant}`" if is_pair else f"`{layout} {variant}`"
            for layout, variant in zip(layouts, variants, strict=True)
        ]
    no_end = rows["projected_from"].str.endswith(NO_END)
    times = (
        f"{'at least' if is_least else 'about'} {span(seconds)} with {name}"
        for seconds, name, is_least in zip(rows["projected_seconds"], words, no_end, strict=True)
    )
    what = rows["projected_from"].iloc[0].removesuffix(NO_END) + NO_END * bool(no_end.any())
    yield f"The whole training, {what}: {', '.join(times)}."
