"""Select and label rows of tables, for figures and the summary."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TypeVar

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.statistics import LEVEL
from escala.experiment.runs import MAIN, Configuration
from escala.programs.marks import WHOLE

#: The most configurations of a dataset and workload in a figure.
MOST = 40

_Result = TypeVar("_Result")


def remember(
    function: Callable[[Mapping[str, pd.DataFrame]], _Result],
) -> Callable[[Mapping[str, pd.DataFrame]], _Result]:
    """Cache the last two results of a function of tables, by the identity of their frames.

    Several parts of a page need the same result, for all tables and for the tables without fits.
    Neither the frames nor the result may be changed in place.
    """
    known: deque[tuple[dict[str, pd.DataFrame], _Result]] = deque(maxlen=2)

    @wraps(function)
    def result_of(frames: Mapping[str, pd.DataFrame]) -> _Result:
        for of_result, result in known:
            is_same = of_result.keys() == frames.keys()
            if is_same and all(of_result[name] is frames[name] for name in frames):
                return result
        result = function(frames)
        known.append((dict(frames), result))
        return result

    return result_of


def any_ok(frames: Mapping[str, pd.DataFrame]) -> bool:
    """Return whether the current measurement of any run ended ok."""
    runs = frames["runs"]
    return bool((runs["current"] & (runs["status"] == "ok")).any())


def level(frames: Mapping[str, pd.DataFrame]) -> float:
    """Return the level of the intervals over repeats."""
    levels = frames["speedup"]["level"]
    return LEVEL if levels.empty else float(levels.iloc[0])


@remember
def without_fits(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return tables without the workloads that are trained by a fit.

    The seconds of a fit are not seconds per epoch, so no figure of times shows both.
    """
    fitted = fit_workloads(frames)
    if not fitted:
        return dict(frames)
    return {
        name: frame[~frame["workload"].isin(fitted)] if "workload" in frame else frame
        for name, frame in frames.items()
    }


def fit_workloads(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the names of the workloads that are trained by a fit."""
    runs = frames["runs"]
    return list(runs.loc[runs["fit"], "workload"].unique())


def programs(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the names of the workloads that are programs, run as they are."""
    runs = frames["runs"]
    return list(runs.loc[runs["command"].notna(), "workload"].unique())


def placeholders_of(runs: pd.DataFrame) -> set[str]:
    """Return the placeholders that the command of a program names, from its rows of `runs`."""
    named = runs["named"].iloc[0]
    return set() if pd.isna(named) else set(named.split(";"))


def all_programs(frames: Mapping[str, pd.DataFrame]) -> bool:
    """Return whether all workloads are programs."""
    return bool(frames["runs"]["command"].notna().all())


def whole_runs(frames: Mapping[str, pd.DataFrame]) -> frozenset[str]:
    """Return the names of the programs that report no epochs: a whole run counts as one epoch."""
    runs = frames["runs"]
    return frozenset(runs.loc[runs["known_by"] == WHOLE, "workload"])


def only_whole_runs(frames: Mapping[str, pd.DataFrame]) -> bool:
    """Return whether each time is that of a whole run, because no workload has epochs."""
    return set(frames["runs"]["workload"]) == whole_runs(frames)


def time_in_words(frames: Mapping[str, pd.DataFrame], workload: str | None = None) -> str:
    """Return for titles what the times of a workload, or of all workloads, measure."""
    whole = only_whole_runs(frames) if workload is None else workload in whole_runs(frames)
    return "time of the whole program" if whole else "training time per epoch"


def unit(frames: Mapping[str, pd.DataFrame], workload: str) -> str:
    """Return which unit of work the time of a workload is for: `epoch` or `run`."""
    return "run" if workload in whole_runs(frames) else "epoch"


def is_main_reference(frame: pd.DataFrame, configurations: pd.DataFrame) -> pd.Series:
    """Return for each row whether its configuration is a main reference, or is trained by a fit."""
    is_main = (configurations["reference"] == MAIN) | configurations["fit"]
    return is_among(frame, set(names_of_rows(configurations[is_main])))


def fastest(frames: Mapping[str, pd.DataFrame], most: int = MOST) -> dict[str, pd.DataFrame]:
    """Return tables with the configurations that a figure shows.

    A figure shows the fastest configurations of each dataset and workload, with their main
    references. Configurations without a time come last. The table of runs keeps all rows: labels
    depend on them, and figures name the runs without result.

    Parameters
    ----------
    most : configurations of a dataset and workload, references included; at least one is shown
        with its reference.
    """
    configurations, speedup = frames["configurations"], frames["speedup"]
    against_main = speedup[speedup["reference"] == MAIN]
    references = [*CONFIGURATION[:2], *(f"reference_{part}" for part in Configuration._fields)]
    reference_of = dict(
        zip(names_of_rows(against_main), names_of_rows(against_main, references), strict=True)
    )
    known, shown = set(names_of_rows(configurations)), set()
    by_time = configurations.sort_values(
        "train_seconds_per_epoch", kind="stable", na_position="last"
    )
    for _, group in by_time.groupby(["dataset", "workload"], sort=False):
        selected: set[tuple] = set()
        for names in names_of_rows(group):
            with_next = selected | ({names, reference_of.get(names, names)} & known)
            if selected and len(with_next) > most:
                break
            selected = with_next
        shown |= selected
    if shown == known:
        return dict(frames)
    with_configurations = {
        name: frame
        for name, frame in frames.items()
        if name != "runs" and set(CONFIGURATION) <= set(frame)
    }
    return {
        **frames,
        **{name: frame[is_among(frame, shown)] for name, frame in with_configurations.items()},
    }


def is_among(frame: pd.DataFrame, names: Collection[tuple]) -> pd.Series:
    """Return for each row of a table whether its configuration is in `names`."""
    return pd.Series([row in names for row in names_of_rows(frame)], index=frame.index, dtype=bool)


def names_of_rows(frame: pd.DataFrame, columns: Sequence[str] = CONFIGURATION) -> Iterator[tuple]:
    """Yield the values of some columns for each row; by default, the row's configuration."""
    return frame[list(columns)].itertuples(index=False, name=None)


def classes_without_tests(pooled: pd.DataFrame) -> list[str]:
    """Return the classes that have no test rows in any split, as `class (dataset)`."""
    without = pooled.loc[pooled["actual"] == 0, ["class", "dataset"]].drop_duplicates()
    return [f"{label} ({dataset})" for label, dataset in without.itertuples(index=False)]


def add_labels(
    frame: pd.DataFrame, runs: pd.DataFrame, varying: Iterable[str] = ("variant", "network")
) -> pd.DataFrame:
    """Add the column `label`: a short name of each row's configuration.

    The label has the strategy, the layout, and the values of those keys in `varying` that differ
    between `runs`. For rows with a reference, `reference_label` is the reference's short name,
    without dataset and workload.
    """
    keys = ["strategy", "layout", *(key for key in varying if runs[key].nunique() > 1)]
    columns_of = {"label": keys}
    if "reference_strategy" in frame:
        parts = [key for key in keys if key in Configuration._fields]
        columns_of["reference_label"] = [f"reference_{part}" for part in parts]
    labels = {}
    for name, columns in columns_of.items():
        rows = frame[columns].fillna("").itertuples(index=False)
        labels[name] = pd.Series([" ".join(row) for row in rows], frame.index, object)
    return frame.assign(**labels)
