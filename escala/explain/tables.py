"""Result tables: what the runs of an experiment measured, one row per thing measured.

Times pool every session in which a run was measured, as long as it measured the same thing;
ratios use pairs of one session; scores count each run once, by its current measurement. The
columns of each table, with their units, are described in `schemas/tables/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from jsonschema import Draft202012Validator

from escala.explain import attribution, differences, ladder, leakage
from escala.explain.comparable import CONFIGURATION, Measurement, Pairs, left_out, paired
from escala.explain.measurements import measurements, read_run
from escala.explain.statistics import (
    Interval,
    Rates,
    median_interval,
    pooled_rates,
    rate_differences,
)
from escala.files import atomic, read_json
from escala.parallel.layout import Layout
from escala.references import DEFAULT, ONE_PROCESS, Place, Reference, compared_with, number_of

SCHEMAS = Path(__file__).resolve().parent.parent.parent / "schemas" / "tables"
TABLES = (
    "classes", "runs", "epochs", "reports", "pooled", "score_differences", "confusion", "leakage",
    "configurations", "speedup", "resources", "attribution", "ladder",
)  # fmt: skip

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


def tables(
    run_files: Iterable[str | Path],
    dataset_files: Iterable[str | Path],
    class_files: Iterable[str | Path],
    resource_files: Iterable[str | Path] = (),
    clock_files: Iterable[str | Path] = (),
    paired_files: Iterable[str | Path] = (),
    pairs: Sequence[Mapping[str, Any]] = (),
    references: Sequence[Reference] = DEFAULT,
) -> dict[str, pd.DataFrame]:
    """Build every table of `TABLES` from run.json, dataset.json and classes.csv files.

    Parameters
    ----------
    resource_files : run.json files of the runs whose resources were sampled.
    clock_files : run.json files of the runs whose ranks noted the moments of their steps.
    paired_files : run.json files of both sides of the pairs of ladders.
    pairs : these pairs, as `escala.experiment.Pair`.
    references : what configurations are compared with, the main one first; `escala.references`.
    """
    found = measurements(run_files)
    runs = _frame("runs", map(_run, found))
    return {
        "classes": _frame("classes", _classes(dataset_files, class_files)),
        "runs": runs,
        "epochs": _frame("epochs", (row for run in found for row in _epochs(run))),
        "reports": _frame("reports", (row for run in _scored(found) for row in _report(run))),
        "pooled": _frame("pooled", _pooled(found)),
        "score_differences": _frame(
            "score_differences", _score_differences(found, dataset_files, references)
        ),
        "confusion": _frame(
            "confusion", (row for run in _scored(found) for row in _confusion(run))
        ),
        "leakage": _frame("leakage", leakage.rows(_scored(found), dataset_files)),
        "configurations": _frame("configurations", _configurations(runs, references)),
        "speedup": _frame("speedup", _speedup(runs, found, references)),
        "resources": _frame("resources", _resources(resource_files)),
        "attribution": _frame("attribution", _attribution(clock_files, runs, references)),
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
        **{key: run[key] for key in ("current", "comparable", "incomparable_because")},
        **{key: run[key] for key in ("status", "reason", "started")},
        "kind": "unavailable" if not ok else "estimated" if cut else "measured",
        "training_kind": training["kind"],
        "ranks": ranks["asked"],
        "ranks_obtained": ranks["obtained"],
        "oversubscribed": ranks["oversubscribed"],
        **{key: (run["link"] or {}).get(key) for key in ("mbit_per_second", "latency_ms")},
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
        "hosts": ";".join(run["ranks"]["hosts"]),
        "weights_sha256": run["weights_sha256"],
        "source_sha256": run["source_sha256"],
        "file": run["file"],
    }


def _is_cut(run: Measurement) -> bool:
    """Return whether an epoch was cut to some of its steps; older runs never were."""
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
    for names, runs in _by_configuration(_scored(found)).items():
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
    found: Iterable[Measurement],
    dataset_files: Iterable[str | Path],
    references: Sequence[Reference],
) -> Iterator[dict]:
    """Compare each configuration's predictions with a reference's in the same repeats."""
    groups = _by_configuration(_scored(found))
    folders = differences.split_folders(dataset_files)
    for names, number, reference, pairs in _same_rows(groups, references):
        rows = differences.paired_rows(pairs, folders)
        classes = pairs[0][1]["evaluation"]["classes"]
        for label, differs in enumerate(rate_differences(*rows, len(classes))):
            own = rows.labels == label
            yield {
                **dict(zip(CONFIGURATION, names, strict=True)),
                **_named(number, reference),
                "class": classes[label],
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


def _same_rows(
    groups: Mapping[tuple, Sequence[Measurement]], references: Sequence[Reference]
) -> Iterator[tuple]:
    """Yield a configuration, a reference, and pairs of their runs on the same rows.

    Scores do not depend on the moment or on the machine: sessions need not agree.
    """
    for names, runs in groups.items():
        for number, reference in compared_with(Place(*names[2:]), references):
            by_rows = {_rows(run): run for run in groups.get((*names[:2], *reference), ())}
            pairs = [(by_rows[_rows(run)], run) for run in runs if _rows(run) in by_rows]
            if pairs:
                yield names, number, reference, pairs


def _rows(run: Measurement) -> tuple:
    """Return what two runs share that were trained on the same rows from the same seeds."""
    return run["repeat"], *sorted(run["data"]["sha256"].items())


def _f1(rate: Rates) -> float | None:
    rows = rate.predicted + rate.actual
    return 2 * rate.true_positives / rows if rate.actual else None


def _kind(interval: Interval) -> str:
    return "unavailable" if interval.estimate is None else "measured"


def _poorest(kinds: pd.Series) -> str:
    """Return what figures made of several may be called."""
    known = set(kinds)
    return "unavailable" if not known else "estimated" if "estimated" in known else "measured"


def _configurations(runs: pd.DataFrame, references: Sequence[Reference]) -> Iterator[dict]:
    for names, group in runs.groupby(list(CONFIGURATION), sort=False):
        current, ok = group[group["current"]], group[group["status"] == "ok"]
        timed = ok[ok["comparable"] & (ok["resumptions"] == 0)]
        scored = ok[ok["current"]]
        failed = current[current["status"] != "ok"]
        yield {
            **dict(zip(CONFIGURATION, names, strict=True)),
            "reference": number_of(Place(*names[2:]), references),
            "training_kind": group["training_kind"].iloc[0],
            "ranks": group["ranks"].iloc[0],
            "oversubscribed": bool(group["oversubscribed"].any()),
            "runs_ok": len(scored),
            "runs_failed": len(failed),
            "measurements": len(timed),
            "sessions": timed["session"].nunique(),
            "hosts": ";".join(sorted(set(";".join(timed["hosts"]).split(";")) - {""})),
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
    return median_interval(runs[column].dropna())


def _reasons(failed: pd.DataFrame) -> str:
    """Return the reasons of failures, each once, with its repeats."""
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
    interval = median_interval(seconds) if reached.all() else Interval(None, None, None)
    return row | {
        "time_to_target_seconds": float(seconds.median()),
        "time_to_target_low_seconds": interval.low,
        "time_to_target_high_seconds": interval.high,
        "time_to_target_kind": "censored" if is_open else "measured",
    }


def _speedup(
    runs: pd.DataFrame, found: Sequence[Measurement], references: Sequence[Reference]
) -> Iterator[dict]:
    by_name = _by_configuration(found)
    usable = _by_configuration(run for run in found if _is_timed(run))
    rows = runs.set_index("file")
    for names, group in runs.groupby(list(CONFIGURATION), sort=False):
        if group["training_kind"].iloc[0] == "fit":
            continue
        place = Place(*names[2:])
        for number, of_reference in compared_with(place, references):
            reference = (*names[:2], *of_reference)
            pairs = paired(usable.get(names, ()), usable.get(reference, ()))
            mine, theirs = (
                rows.loc[[run["file"] for run in side]] for side in (pairs.runs, pairs.references)
            )
            ratio = median_interval(_quotients(mine, theirs, "train_seconds_per_epoch"))
            speedup = Interval(
                *(1 / r if r else None for r in (ratio.estimate, ratio.high, ratio.low))
            )
            cores, baseline = (_setting(by_name.get(each), _cores) for each in (names, reference))
            share = baseline / cores if baseline else None
            yield {
                **dict(zip(CONFIGURATION, names, strict=True)),
                **_named(number, of_reference),
                "ranks": Layout.parse(place.layout).ranks,
                "cores": cores,
                "reference_cores": baseline,
                "global_batch": _setting(by_name[names], _global_batch),
                "reference_global_batch": _setting(by_name.get(reference), _global_batch),
                "oversubscribed": bool(group["oversubscribed"].any()),
                "other_hosts": any(map(_on_other_hosts, mine["hosts"], theirs["hosts"])),
                "pairs": len(mine),
                "kind": _poorest(pd.concat([mine["kind"], theirs["kind"]])),
                "reason": left_out(len(mine), pairs.refused)
                if len(mine)
                else _unpaired(by_name[names], by_name.get(reference, ()), of_reference, pairs),
                **ratio.columns("ratio"),
                **speedup.columns("speedup"),
                **Interval(*(s and share and s * share for s in speedup)).columns("efficiency"),
                **_target_ratio(mine, theirs),
                "provenance": group["provenance"].iloc[0],
                "leaky": group["leaky"].iloc[0],
            }


def _on_other_hosts(mine: str, theirs: str) -> bool:
    """Return whether neither run's hosts, joined by `;`, are among the other's."""
    one, other = set(mine.split(";")), set(theirs.split(";"))
    return not (one <= other or other <= one)


def _by_configuration(found: Iterable[Measurement]) -> dict[tuple, list[Measurement]]:
    groups: dict[tuple, list[Measurement]] = {}
    for run in found:
        groups.setdefault(tuple(run[key] for key in CONFIGURATION), []).append(run)
    return groups


def _is_timed(run: Measurement) -> bool:
    """Return whether the time of a measurement counts: it ended ok, at one sitting, as today."""
    resumed = run["training"].get("resumed_after", [])
    return run["status"] == "ok" and not resumed and run["comparable"]


def _named(number: int, reference: Place) -> dict:
    """Return the columns that name a reference."""
    parts = reference._asdict().items()
    return {"reference": number} | {f"reference_{part}": name for part, name in parts}


def _setting(runs: Sequence[Measurement] | None, of: Callable[[Measurement], int]) -> int | None:
    """Return a setting of a configuration as its current runs have it."""
    return next((of(run) for run in runs or () if run["current"]), None)


def _cores(run: Measurement) -> int:
    """Return the cores that a run asks for, over all its ranks."""
    return run["ranks"]["asked"] * run["knobs"]["cores_per_process"]


def _global_batch(run: Measurement) -> int:
    return run["training"]["global_batch"]


def _quotients(mine: pd.DataFrame, theirs: pd.DataFrame, column: str) -> np.ndarray:
    return mine[column].to_numpy() / theirs[column].to_numpy()


def _target_ratio(mine: pd.DataFrame, theirs: pd.DataFrame) -> dict:
    """Compare the times to the target accuracy of pairs of runs.

    A run that did not reach it would have taken longer than it ran: the ratio of such a pair is
    known to lie above, or below, a bound.
    """
    spent = [side["time_to_target_seconds"].to_numpy(float) for side in (mine, theirs)]
    known = ~np.isnan(spent).any(axis=0)
    least = [seconds[known] for seconds in spent]
    reached = [(side["time_to_target_kind"] == "measured")[known] for side in (mine, theirs)]
    most = [np.where(done, spent, np.inf) for done, spent in zip(reached, least, strict=True)]
    ratio = median_interval(least[0] / most[1], most[0] / least[1])
    kind = "censored" if ratio.estimate is None else "measured"
    return {
        "target_accuracy": mine["target_accuracy"][known].iloc[0] if known.any() else None,
        "time_to_target_pairs": int(known.sum()),
        "time_to_target_kind": kind if known.any() else "unavailable",
        **ratio.columns("time_to_target_ratio"),
    }


def _unpaired(
    runs: Sequence[Measurement],
    references: Sequence[Measurement],
    reference: Place,
    pairs: Pairs,
) -> str:
    """Return why a configuration has no ratio to a reference."""
    if not any(run["status"] == "ok" for run in runs):
        return f"no run ended ok: {_failures(runs)}"
    if not references:
        return f"the experiment has no {reference} beside it"
    if not any(run["status"] == "ok" for run in references):
        return f"no run of {reference} ended ok: {_failures(references)}"
    if pairs.refused:
        return "; ".join(dict.fromkeys(pairs.refused))
    older = {run["incomparable_because"] for run in (*runs, *references) if not run["comparable"]}
    return (
        f"no run that ended ok, at one sitting, shares session and repeat with one of {reference}"
        + (f"; older sessions do not count: {'; '.join(sorted(older))}" if older else "")
    )


def _failures(runs: Sequence[Measurement]) -> str:
    return _reasons(pd.DataFrame([run for run in runs if run["current"]]))


def _resources(files: Iterable[str | Path]) -> Iterator[dict]:
    for run in map(read_run, files):
        name = {key: run[key] for key in (*CONFIGURATION, "session", "status", "reason")}
        name |= {"oversubscribed": run["ranks"]["oversubscribed"]}
        unread = dict.fromkeys(_dtypes("resources"))
        for process in run["resources"] or [{}]:
            yield unread | name | process | _data(run)


def _attribution(
    files: Iterable[str | Path], runs: pd.DataFrame, references: Sequence[Reference]
) -> Iterator[dict]:
    found = [read_run(path) | {"file": str(path)} for path in files]
    ok = [run for run in found if run["status"] == "ok"]
    parts, by_name = {run["file"]: _parts(run) for run in ok}, _by_configuration(ok)
    for run in found:
        row = dict.fromkeys(_dtypes("attribution")) | _data(run)
        row |= {key: run[key] for key in (*CONFIGURATION, "session", "status", "reason")}
        row |= {"oversubscribed": run["ranks"]["oversubscribed"], "kind": "unavailable"}
        if run["status"] != "ok":
            yield row
            continue
        row |= {"slowdown": _slowdown(run, runs)}
        name, reference = _main_reference(run, by_name, references)
        medians = {}
        if reference:
            of_rank_0 = parts[reference["file"]].query("rank == 0").set_index("part")
            medians = of_rank_0["median_seconds"].to_dict()
        for part in parts[run["file"]].to_dict("records"):
            yield row | name | part | {"reference_median_seconds": medians.get(part["part"])}


def _parts(run: Measurement) -> pd.DataFrame:
    alone = run["strategy"] == ONE_PROCESS[0]
    return attribution.of_run(Path(run["file"]), alone, run["ranks"]["one_clock"])


def _main_reference(
    run: Measurement,
    by_name: Mapping[tuple, Sequence[Measurement]],
    references: Sequence[Reference],
) -> tuple[dict, Measurement | None]:
    """Return the columns that name a run's main reference, and its run of the same session."""
    for number, place in compared_with(Place(*(run[key] for key in CONFIGURATION[2:])), references):
        candidates = by_name.get((run["dataset"], run["workload"], *place), ())
        return _named(number, place), next(iter(paired([run], candidates).references), None)
    return {}, None


def _ladders(files: Iterable[str | Path], pairs: Sequence[Mapping[str, Any]]) -> Iterator[dict]:
    found = measurements(files)
    runs = _frame("runs", map(_run, found)).assign(
        pair=[run["pair"] for run in found], measurement=found
    )
    return ladder.rows(runs, pairs)


def _slowdown(run: Measurement, runs: pd.DataFrame) -> float | None:
    """Return the median step of an instrumented run over that of its session's timing runs."""
    of_both = [*CONFIGURATION, "session"]
    same = (runs[of_both] == [run[key] for key in of_both]).all(axis=1)
    timed = runs.loc[same & runs["comparable"], "step_median_seconds"].dropna()
    return run["step_seconds"]["median"] / timed.median() if len(timed) else None


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


def is_main_reference(frame: pd.DataFrame, configurations: pd.DataFrame) -> pd.Series:
    """Return for each row whether it is of a main reference, or of a workload fitted at once."""
    main = configurations[
        (configurations["reference"] == 1) | (configurations["training_kind"] == "fit")
    ]
    names = set(main[list(CONFIGURATION)].itertuples(index=False, name=None))
    of_rows = frame[list(CONFIGURATION)].itertuples(index=False, name=None)
    return pd.Series([row in names for row in of_rows], index=frame.index, dtype=bool)


def untested(pooled: pd.DataFrame) -> list[str]:
    """Return the classes that have no test rows in any split, as `class (dataset)`."""
    without = pooled[pooled["actual"] == 0][["class", "dataset"]].drop_duplicates()
    return [f"{row['class']} ({row['dataset']})" for _, row in without.iterrows()]


def labelled(
    frame: pd.DataFrame, runs: pd.DataFrame, varying: Iterable[str] = ("variant", "network")
) -> pd.DataFrame:
    """Add the column `label`: a short name of each row's configuration.

    It holds strategy and layout, and those of the keys `varying` that vary among `runs`. Where rows
    name a reference, `reference_label` is its name, without the dataset and the workload.
    """
    keys = ["strategy", "layout", *(key for key in varying if runs[key].nunique() > 1)]
    labels = {"label": keys}
    if "reference_strategy" in frame:
        of_place = [key for key in keys if key in Place._fields]
        labels["reference_label"] = [f"reference_{key}" for key in of_place]
    return frame.assign(**{name: _joined(frame[parts]) for name, parts in labels.items()})


def _joined(names: pd.DataFrame) -> pd.Series:
    words = [" ".join(row) for row in names.fillna("").itertuples(index=False)]
    return pd.Series(words, index=names.index, dtype=object)
