"""Result tables: what the runs of an experiment measured, one row per thing measured.

Times pool every session in which a run was measured, as long as it measured the same thing;
ratios use pairs of one session; scores count each run once, by its current measurement. The
columns of each table, with their units, are described in `schemas/tables/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from jsonschema import Draft202012Validator

from escala.explain import attribution, differences, ladder, leakage
from escala.explain.statistics import (
    Interval,
    Rates,
    bootstrap_interval,
    paired_ratios,
    pooled_rates,
    rate_differences,
    ratio_interval,
)
from escala.files import atomic, read_json
from escala.parallel.layout import Layout

SCHEMAS = Path(__file__).resolve().parent.parent.parent / "schemas" / "tables"
TABLES = (
    "classes", "runs", "epochs", "reports", "pooled", "score_differences", "confusion", "leakage",
    "configurations", "speedup", "resources", "attribution", "ladder",
)  # fmt: skip

#: What names a configuration, and with `repeat` a run.
CONFIGURATION = ("dataset", "workload", "strategy", "layout", "variant", "network")
BASELINE = ("single", "1x1")
STAGES = ("records", "kept", "train", "balanced", "test")
#: Parts of a run outside the training steps, in the order they happen.
PARTS = (
    "startup", "loading", "build", "first_step", "first_prediction", "broadcast", "checkpoint",
    "evaluation", "save",
)  # fmt: skip

_TRAINING = (
    "global_batch", "rows_per_rank", "learning_rate", "optimizer", "epochs_asked", "epochs_done",
    "stopped_early", "parameters", "train_rows", "test_rows",
)  # fmt: skip
_OF_RECORDS = (
    "duplicates_genome", "duplicates_encoded", "length_min", "length_median", "length_max",
    "ambiguous_fraction",
)  # fmt: skip
_PANDAS = {"string": "string", "integer": "Int64", "number": "float64", "boolean": "boolean"}

Measurement = Mapping[str, Any]


def measurements(run_files: Iterable[str | Path]) -> list[dict]:
    """Read the current measurement of every run, and its older ones from `sessions/` beside it.

    Returns
    -------
    The content of each `run.json` with the keys `file`, `current` (it is the one in run.json)
    and `comparable` (it measured what the current one did, on the same machine).
    """
    found = []
    for path in map(Path, run_files):
        current = _read(path)
        found.append(current | {"file": str(path), "current": True, "comparable": True})
        for older in sorted(path.parent.glob("sessions/*.json")):
            content = _read(older)
            if content["session"] != current["session"]:
                same = _conditions(content) == _conditions(current)
                found.append(content | {"file": str(older), "current": False, "comparable": same})
    return found


def _read(path: Path) -> dict:
    """Return the content of a run.json; in format 1 every run was trained by gradient steps."""
    run = read_json(path)
    if run["format"] == 1:
        run["training"]["kind"] = "gradient"
    return run


def _conditions(run: Measurement) -> tuple:
    """Return all that must agree for two measurements of a run to be pooled."""
    outcomes = {"epochs_done", "stopped_early", "resumed_after", "optimizer", "parameters"}
    return (
        {key: value for key, value in run["training"].items() if key not in outcomes},
        run["data"],
        run["knobs"],
        run["ranks"]["asked"],
        run["versions"],
        run["source_sha256"],
        {key: run["machine"].get(key) for key in ("cpu", "cores_available", "hostname")},
    )


def tables(
    run_files: Iterable[str | Path],
    dataset_files: Iterable[str | Path],
    class_files: Iterable[str | Path],
    resource_files: Iterable[str | Path] = (),
    clock_files: Iterable[str | Path] = (),
    paired_files: Iterable[str | Path] = (),
    pairs: Sequence[Mapping[str, Any]] = (),
) -> dict[str, pd.DataFrame]:
    """Build every table of `TABLES` from run.json, dataset.json and classes.csv files.

    Parameters
    ----------
    resource_files : run.json files of the runs whose resources were sampled.
    clock_files : run.json files of the runs whose ranks noted the moments of their steps.
    paired_files : run.json files of both sides of the pairs of ladders.
    pairs : these pairs, as `escala.config.Pair`.
    """
    found = measurements(run_files)
    runs = _frame("runs", map(_run, found))
    return {
        "classes": _frame("classes", _classes(dataset_files, class_files)),
        "runs": runs,
        "epochs": _frame("epochs", (row for run in found for row in _epochs(run))),
        "reports": _frame("reports", (row for run in _scored(found) for row in _report(run))),
        "pooled": _frame("pooled", _pooled(found)),
        "score_differences": _frame("score_differences", _score_differences(found, dataset_files)),
        "confusion": _frame(
            "confusion", (row for run in _scored(found) for row in _confusion(run))
        ),
        "leakage": _frame("leakage", leakage.rows(_scored(found), dataset_files)),
        "configurations": _frame("configurations", _configurations(runs)),
        "speedup": _frame("speedup", _speedup(runs)),
        "resources": _frame("resources", _resources(resource_files)),
        "attribution": _frame("attribution", _attribution(clock_files, runs)),
        "ladder": _frame("ladder", _ladders(paired_files, pairs)),
    }


def write(frames: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Check tables against their schemas and write each as CSV."""
    for name, frame in frames.items():
        validate(name, frame)
        with atomic(folder / f"{name}.csv") as temporary:
            frame.to_csv(temporary, index=False)


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the tables in a folder, with the types that their schemas give."""
    return {
        name: pd.read_csv(
            # A class or a variant may be called NA or None; only an empty field is missing.
            folder / f"{name}.csv",
            dtype=_dtypes(name),
            keep_default_na=False,
            na_values=[""],
        )
        for name in TABLES
    }


@cache
def schema(name: str) -> dict:
    """Return the JSON schema of a table's rows; the order of its properties is the columns'."""
    return yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text())


def validate(name: str, frame: pd.DataFrame) -> None:
    """Check every row of a table; a missing value counts as null.

    Raises
    ------
    jsonschema.ValidationError : a row does not keep to the schema.
    """
    validator = Draft202012Validator(schema(name))
    for row in frame.astype(object).where(frame.notna(), None).to_dict("records"):
        validator.validate(row)


def _frame(name: str, rows: Iterable[dict]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(schema(name)["properties"])).astype(_dtypes(name))


def _dtypes(name: str) -> dict[str, str]:
    """Return pandas' type of every column; all of them can hold missing values."""
    return {
        key: _PANDAS[np.atleast_1d(column["type"])[0]]
        for key, column in schema(name)["properties"].items()
    }


def _names(run: Measurement) -> dict:
    return {key: run[key] for key in (*CONFIGURATION, "repeat", "session")}


def _data(run: Measurement) -> dict:
    return {key: run["data"][key] for key in ("provenance", "leaky", "split_seed")}


def _run(run: Measurement) -> dict:
    ranks, training, machine = run["ranks"], run["training"], run["machine"]
    seconds, steps = run["seconds"] or {}, run["step_seconds"] or {}
    evaluation, epochs = run["evaluation"] or {}, run["epochs"]
    ok, cut = run["status"] == "ok", _is_cut(run)
    if cut:
        evaluation = {}
    return {
        **_names(run),
        **{key: run[key] for key in ("current", "comparable", "status", "reason", "started")},
        "kind": "unavailable" if not ok else "estimated" if cut else "measured",
        "training_kind": training["kind"],
        "ranks": ranks["asked"],
        "ranks_obtained": ranks["obtained"],
        "oversubscribed": ranks["oversubscribed"],
        **{key: (run.get("link") or {}).get(key) for key in ("mbit_per_second", "latency_ms")},
        "launcher": ranks.get("launcher"),
        "cores": ";".join(",".join(map(str, cores)) for cores in ranks["cores"]),
        "intra_op_threads": ranks["threads"]["intra_op"],
        "inter_op_threads": ranks["threads"]["inter_op"],
        **{key: training[key] for key in _TRAINING},
        "resumptions": len(training.get("resumed_after", [])),
        "train_seconds": seconds.get("train"),
        "train_seconds_per_epoch": _seconds_per_epoch(run) if ok else None,
        "epoch_wall_seconds_per_epoch": (
            float(np.mean([epoch["epoch_wall_seconds"] for epoch in epochs]))
            if ok and not cut
            else None
        ),
        "step_median_seconds": steps.get("median"),
        "step_p90_seconds": steps.get("p90"),
        "samples_per_second": run["samples_per_second"],
        **{f"{part}_seconds": seconds.get(part) for part in PARTS},
        "wall_seconds": run["wall_seconds"],
        "accuracy": evaluation.get("accuracy"),
        "macro_f1": evaluation["macro"]["f1"] if evaluation else None,
        **_time_to_target(run),
        **_data(run),
        **{key: machine[key] for key in ("cpu", "cores_available", "memory_bytes", "kernel")},
        "hostname": machine["hostname"],
        "weights_sha256": run["weights_sha256"],
        "source_sha256": run["source_sha256"],
        "file": run["file"],
    }


def _is_cut(run: Measurement) -> bool:
    """Say whether an epoch was cut to some of its steps; older runs never were."""
    whole = run["training"].get("steps_per_epoch")
    return whole is not None and any(epoch["steps"] < whole for epoch in run["epochs"])


def _seconds_per_epoch(run: Measurement) -> float:
    """Return the training seconds of an epoch; of one that was cut, in proportion to its steps."""
    spent, epochs = run["seconds"]["train"], run["epochs"]
    if not _is_cut(run):
        return spent / len(epochs)
    return spent / sum(e["steps"] for e in epochs) * run["training"]["steps_per_epoch"]


def _time_to_target(run: Measurement) -> dict:
    """Return the training seconds until the target accuracy, censored if it was not reached."""
    target = run["training"].get("target_accuracy")
    row = {"target_accuracy": target, "time_to_target_seconds": None}
    if run["status"] != "ok" or target is None:
        return row | {"time_to_target_kind": "unavailable"}
    spent = 0.0
    for epoch in run["epochs"]:
        spent += epoch["train_seconds"]
        if epoch["test_accuracy"] is not None and epoch["test_accuracy"] >= target:
            return row | {"time_to_target_seconds": spent, "time_to_target_kind": "measured"}
    return row | {"time_to_target_seconds": spent, "time_to_target_kind": "censored"}


def _epochs(run: Measurement) -> Iterator[dict]:
    for epoch in run["epochs"]:
        yield {
            **_names(run),
            **{key: run[key] for key in ("current", "status")},
            **epoch,
            **_data(run),
        }


def _scored(found: Iterable[Measurement]) -> list[Measurement]:
    """Return the current measurements of whole epochs that ended ok: those whose scores count."""
    return [run for run in found if run["current"] and run["status"] == "ok" and not _is_cut(run)]


def _report(run: Measurement) -> Iterator[dict]:
    evaluation = run["evaluation"]
    names = _names(run) | _data(run)
    for label, scores in evaluation["per_class"].items():
        yield {**names, "level": "class", "class": label, **scores}
    for level in ("macro", "weighted"):
        yield {**names, "level": level, **evaluation[level], "support": evaluation["rows"]}
    yield {
        **names,
        "level": "accuracy",
        "accuracy": evaluation["accuracy"],
        "support": evaluation["rows"],
    }


def _confusion(run: Measurement) -> Iterator[dict]:
    evaluation = run["evaluation"]
    for true, row in zip(evaluation["classes"], evaluation["confusion_matrix"], strict=True):
        for predicted, count in zip(evaluation["classes"], row, strict=True):
            yield {
                **_names(run),
                "true_class": true,
                "predicted_class": predicted,
                "rows": count,
                **_data(run),
            }


def _pooled(found: Iterable[Measurement]) -> Iterator[dict]:
    groups: dict[tuple, list[Measurement]] = {}
    for run in _scored(found):
        groups.setdefault(tuple(run[key] for key in CONFIGURATION), []).append(run)
    for names, runs in groups.items():
        splits = [run["data"]["split_seed"] for run in runs]
        matrices = [np.array(run["evaluation"]["confusion_matrix"]) for run in runs]
        rates = pooled_rates(matrices, splits)
        for label, rate in zip(runs[0]["evaluation"]["classes"], rates, strict=True):
            # Rows predicted as a class that is not tested are errors of the other classes alone.
            unknown = Interval(None, None, None)
            precision, recall = (rate.precision, rate.recall) if rate.actual else (unknown, unknown)
            yield {
                **dict(zip(CONFIGURATION, names, strict=True)),
                "class": label,
                "runs": len(runs),
                "splits": len(set(splits)),
                **precision.columns("precision"),
                "precision_kind": _kind(precision),
                **recall.columns("recall"),
                "recall_kind": _kind(recall),
                "f1": _f1(rate),
                "true_positives": rate.true_positives,
                "predicted": rate.predicted,
                "actual": rate.actual,
                "provenance": runs[0]["data"]["provenance"],
                "leaky": runs[0]["data"]["leaky"],
            }


def _score_differences(
    found: Iterable[Measurement], dataset_files: Iterable[str | Path]
) -> Iterator[dict]:
    """Compare each configuration's predictions with the baseline's of the same repeats."""
    scored = _scored(found)
    baselines = {
        _repeat(run): run for run in scored if (run["strategy"], run["layout"]) == BASELINE
    }
    groups: dict[tuple, list[tuple[Measurement, Measurement]]] = {}
    for run in scored:
        baseline = baselines.get(_repeat(run))
        if baseline and baseline is not run:
            names = tuple(run[key] for key in CONFIGURATION)
            groups.setdefault(names, []).append((baseline, run))
    folders = differences.split_folders(dataset_files)
    for names, pairs in groups.items():
        rows = differences.paired_rows(pairs, folders)
        classes = pairs[0][1]["evaluation"]["classes"]
        for number, differs in enumerate(rate_differences(*rows, len(classes))):
            own = rows.labels == number
            yield {
                **dict(zip(CONFIGURATION, names, strict=True)),
                "class": classes[number],
                "runs": len(pairs),
                "splits": len({run["data"]["split_seed"] for _, run in pairs}),
                "rows": int(own.sum()),
                "genomes": len(np.unique(rows.genomes[own])),
                **differs.precision.columns("precision_difference"),
                "precision_kind": _kind(differs.precision),
                **differs.recall.columns("recall_difference"),
                "recall_kind": _kind(differs.recall),
                **{key: pairs[0][1]["data"][key] for key in ("provenance", "leaky")},
            }


def _repeat(run: Measurement) -> tuple:
    """Return what two runs share when they were trained and tested on the same rows."""
    return tuple(run[key] for key in ("dataset", "workload", "variant", "repeat"))


def _f1(rate: Rates) -> float | None:
    rows = rate.predicted + rate.actual
    return 2 * rate.true_positives / rows if rate.actual else None


def _kind(interval: Interval) -> str:
    return "unavailable" if interval.estimate is None else "measured"


def _poorest(kinds: pd.Series) -> str:
    """Return what figures made of several may be called."""
    known = set(kinds)
    return "unavailable" if not known else "estimated" if "estimated" in known else "measured"


def _configurations(runs: pd.DataFrame) -> Iterator[dict]:
    for names, group in runs.groupby(list(CONFIGURATION), sort=False):
        current, ok = group[group["current"]], group[group["status"] == "ok"]
        timed = ok[ok["comparable"] & (ok["resumptions"] == 0)]
        scored = ok[ok["current"]]
        failed = current[current["status"] != "ok"]
        yield {
            **dict(zip(CONFIGURATION, names, strict=True)),
            "training_kind": group["training_kind"].iloc[0],
            "ranks": group["ranks"].iloc[0],
            "oversubscribed": bool(group["oversubscribed"].any()),
            "runs_ok": len(scored),
            "runs_failed": len(failed),
            "measurements": len(timed),
            "sessions": timed["session"].nunique(),
            "kind": _poorest(timed["kind"]),
            "reason": None if len(timed) else _reasons(failed),
            **_over(timed, "train_seconds_per_epoch").columns("train", "_seconds_per_epoch"),
            **_over(timed, "step_median_seconds").columns("step", "_seconds"),
            **_over(timed, "samples_per_second").columns("samples_per_second"),
            **_over(scored, "accuracy").columns("accuracy"),
            **_configuration_target(timed),
            "epoch_wall_seconds_per_epoch": _over(timed, "epoch_wall_seconds_per_epoch").estimate,
            **{f"{p}_seconds": _over(timed, f"{p}_seconds").estimate for p in PARTS},
            "wall_seconds": _over(timed, "wall_seconds").estimate,
            "provenance": group["provenance"].iloc[0],
            "leaky": group["leaky"].iloc[0],
        }


def _over(runs: pd.DataFrame, column: str) -> Interval:
    return bootstrap_interval(runs[column].dropna())


def _reasons(failed: pd.DataFrame) -> str:
    """Say why there is nothing, each reason once, with the repeats it holds for."""
    by_reason = failed.groupby(["status", "reason"], sort=False, dropna=False)["repeat"]
    return "; ".join(
        f"rep {', '.join(map(str, repeats))}: {status}"
        + ("" if pd.isna(reason) else f" ({reason})")
        for (status, reason), repeats in by_reason
    )


def _configuration_target(timed: pd.DataFrame) -> dict:
    """Return the median time to the target accuracy.

    Runs that did not reach it would have taken longer than they ran. Where that leaves the
    median open, the value is a lower bound and the kind `censored`.
    """
    known = timed[timed["time_to_target_kind"] != "unavailable"]
    reached = known["time_to_target_kind"] == "measured"
    row = {
        "target_accuracy": known["target_accuracy"].iloc[0] if len(known) else None,
        "target_reached_runs": int(reached.sum()),
    }
    if known.empty:
        return row | {"time_to_target_kind": "unavailable"}
    seconds = known["time_to_target_seconds"]
    is_open = np.isinf(np.median(seconds.where(reached, np.inf)))
    interval = bootstrap_interval(seconds) if reached.all() else Interval(None, None, None)
    return row | {
        "time_to_target_seconds": float(seconds.median()),
        "time_to_target_low_seconds": interval.low,
        "time_to_target_high_seconds": interval.high,
        "time_to_target_kind": "censored" if is_open else "measured",
    }


def _speedup(runs: pd.DataFrame) -> Iterator[dict]:
    ok = runs[(runs["status"] == "ok") & (runs["resumptions"] == 0)]
    pairs = paired_ratios(ok, "train_seconds_per_epoch", BASELINE)
    pairs, to_target = pairs[pairs["comparable"]], _target_pairs(ok[ok["comparable"]])
    for names, group in runs.groupby(list(CONFIGURATION), sort=False):
        name = dict(zip(CONFIGURATION, names, strict=True))
        if (name["strategy"], name["layout"]) == BASELINE:
            continue
        mine = pairs[_is(pairs, names)]
        ratio = ratio_interval(mine["ratio"])
        speedup = Interval(*(1 / r if r else None for r in (ratio.estimate, ratio.high, ratio.low)))
        ranks = Layout.parse(name["layout"]).ranks
        yield {
            **name,
            "ranks": ranks,
            "oversubscribed": bool(group["oversubscribed"].any()),
            "pairs": len(mine),
            "kind": _poorest(group.loc[group["session"].isin(mine["session"]), "kind"])
            if len(mine)
            else "unavailable",
            "reason": None if len(mine) else _unpaired(name, group, runs),
            **ratio.columns("ratio"),
            **speedup.columns("speedup"),
            **Interval(*(s and s / ranks for s in speedup)).columns("efficiency"),
            **_target_ratio(to_target[_is(to_target, names)]),
            "provenance": group["provenance"].iloc[0],
            "leaky": group["leaky"].iloc[0],
        }


def _target_pairs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the least and the most that the ratio of times to the target accuracy can be.

    A run that did not reach it would have taken longer than it ran.

    Returns
    -------
    The runs that have a partner, with the columns `at_least` and `at_most`.
    """
    spent = runs["time_to_target_seconds"]
    reached = runs["time_to_target_kind"] == "measured"
    bounded = runs.assign(_least=spent, _most=spent.where(reached, np.inf))
    bounded = bounded[spent.notna()]
    least = paired_ratios(bounded, "_least", BASELINE, over="_most")
    most = paired_ratios(bounded, "_most", BASELINE, over="_least")
    return least.assign(at_least=least["ratio"], at_most=most["ratio"])


def _target_ratio(pairs: pd.DataFrame) -> dict:
    ratio = ratio_interval(pairs["at_least"], pairs["at_most"])
    known = "censored" if ratio.estimate is None else "measured"
    return {
        "target_accuracy": pairs["target_accuracy"].iloc[0] if len(pairs) else None,
        "time_to_target_pairs": len(pairs),
        "time_to_target_kind": known if len(pairs) else "unavailable",
        **ratio.columns("time_to_target_ratio"),
    }


def _is(frame: pd.DataFrame, names: tuple) -> pd.Series:
    """Say of each row whether it is of the configuration of these names."""
    return (frame[list(CONFIGURATION)] == list(names)).all(axis=1)


def _resources(files: Iterable[str | Path]) -> Iterator[dict]:
    for run in map(_read, map(Path, files)):
        name = {key: run[key] for key in (*CONFIGURATION, "session", "status", "reason")}
        name |= {"oversubscribed": run["ranks"]["oversubscribed"]}
        unread = dict.fromkeys(_dtypes("resources"))
        for process in run["resources"] or [{}]:
            yield unread | name | process | _data(run)


def _attribution(files: Iterable[str | Path], runs: pd.DataFrame) -> Iterator[dict]:
    for path in map(Path, files):
        run = _read(path)
        name = {key: run[key] for key in (*CONFIGURATION, "session", "status", "reason")}
        name |= {"oversubscribed": run["ranks"]["oversubscribed"]} | _data(run)
        if run["status"] != "ok":
            yield dict.fromkeys(_dtypes("attribution")) | name | {"kind": "unavailable"}
            continue
        name |= {"slowdown": _slowdown(run, runs)}
        alone, one_clock = run["strategy"] == BASELINE[0], run["ranks"]["one_clock"]
        for part in attribution.of_run(path, alone, one_clock).to_dict("records"):
            yield name | part


def _ladders(files: Iterable[str | Path], pairs: Sequence[Mapping[str, Any]]) -> Iterator[dict]:
    found = measurements(files)
    runs = _frame("runs", map(_run, found)).assign(pair=[run["pair"] for run in found])
    return ladder.rows(runs, pairs)


def _slowdown(run: Measurement, runs: pd.DataFrame) -> float | None:
    """Return the median step of an instrumented run over that of its session's timing runs."""
    of_both = [*CONFIGURATION, "session"]
    same = (runs[of_both] == [run[key] for key in of_both]).all(axis=1)
    timed = runs.loc[same & runs["comparable"], "step_median_seconds"].dropna()
    return run["step_seconds"]["median"] / timed.median() if len(timed) else None


def _unpaired(name: Mapping[str, str], group: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Say why a configuration has no ratio."""
    if not (group["status"] == "ok").any():
        return f"no run ended ok: {_reasons(group[group['current']])}"
    same = [key for key in CONFIGURATION if key not in ("strategy", "layout", "network")]
    beside = runs[(runs[same] == [name[key] for key in same]).all(axis=1)]
    baseline = beside[(beside["strategy"] == BASELINE[0]) & (beside["layout"] == BASELINE[1])]
    if baseline.empty:
        return f"the experiment has no {' '.join(BASELINE)} beside it"
    if not (baseline["status"] == "ok").any():
        return f"no run of the baseline ended ok: {_reasons(baseline[baseline['current']])}"
    return (
        "no run that ended ok, at one sitting, shares session and repeat with one of the baseline"
    )


def _classes(
    dataset_files: Iterable[str | Path], class_files: Iterable[str | Path]
) -> Iterator[dict]:
    reports = {
        Path(path).parent: pd.read_csv(path, dtype={"class": str}, keep_default_na=False).set_index(
            "class"
        )
        for path in class_files
    }
    for path in map(Path, dataset_files):
        dataset, report = read_json(path), reports[path.parent.parent]
        for label in dataset["classes"]:
            row, counts = report.loc[label], dataset["counts"][label]
            yield {
                "dataset": dataset["dataset"],
                "split_seed": dataset["split_seed"],
                "class": label,
                **{stage: counts[stage] for stage in STAGES},
                **{key: row[key] for key in _OF_RECORDS},
                "provenance": dataset["provenance"],
                "leaky": dataset["leaky"],
            }


def by_gradient(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return tables without the workloads that are fitted at once.

    The seconds of a fit are no seconds per epoch: nothing that shows times puts them side by side.
    """
    fitted = fitted_workloads(frames)
    return {
        name: frame[~frame["workload"].isin(fitted)] if "workload" in frame else frame
        for name, frame in frames.items()
    }


def fitted_workloads(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the names of the workloads that are fitted at once."""
    runs = frames["runs"]
    return list(runs.loc[runs["training_kind"] == "fit", "workload"].unique())


def untested(pooled: pd.DataFrame) -> list[str]:
    """Return the classes that have no test rows in any split, as `class (dataset)`."""
    without = pooled[pooled["actual"] == 0][["class", "dataset"]].drop_duplicates()
    return [f"{row['class']} ({row['dataset']})" for _, row in without.iterrows()]


def labelled(
    frame: pd.DataFrame, runs: pd.DataFrame, varying: Iterable[str] = ("variant", "network")
) -> pd.DataFrame:
    """Add the column `label`: a short name of each row's configuration.

    It holds strategy and layout, and those of the keys `varying` that vary among `runs`.
    """
    keys = ["strategy", "layout", *(key for key in varying if runs[key].nunique() > 1)]
    names = [" ".join(row) for row in frame[keys].itertuples(index=False)]
    return frame.assign(label=pd.Series(names, index=frame.index, dtype=object))
