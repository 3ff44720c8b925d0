"""Select and label rows of tables, for figures and the summary."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TypeVar

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.experiment.runs import Configuration
from escala.programs.marks import WHOLE

#: Configurations of a dataset and workload in a figure.
MOST = 40

_Result = TypeVar("_Result")


def remember(
    function: Callable[[Mapping[str, pd.DataFrame]], _Result],
) -> Callable[[Mapping[str, pd.DataFrame]], _Result]:
    """Let a function of tables return what it did for the same frames, as parts of a page ask.

    Neither the frames nor the result may be changed in place.
    """
    # Of all tables, and of those of workloads trained by steps.
    known: deque[tuple[dict[str, pd.DataFrame], _Result]] = deque(maxlen=2)

    @wraps(function)
    def result(frames: Mapping[str, pd.DataFrame]) -> _Result:
        for before, answer in known:
            if before.keys() == frames.keys() and all(before[n] is frames[n] for n in before):
                return answer
        answer = function(frames)
        known.append((dict(frames), answer))
        return answer

    return result


def any_ok(frames: Mapping[str, pd.DataFrame]) -> bool:
    """Return whether the current measurement of any run ended ok."""
    runs = frames["runs"]
    return bool((runs["current"] & (runs["status"] == "ok")).any())


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
    """Return the names of the programs that tell of no epochs: the one they have is a whole run."""
    runs = frames["runs"]
    return frozenset(runs.loc[runs["known_by"] == WHOLE, "workload"])


def only_whole_runs(frames: Mapping[str, pd.DataFrame]) -> bool:
    """Return whether each time is that of a whole run, as no workload has epochs."""
    return set(frames["runs"]["workload"]) == whole_runs(frames)


def per_epoch(frames: Mapping[str, pd.DataFrame], workload: str | None = None) -> str:
    """Return what the time of a workload is, for titles; of all workloads without a name."""
    whole = only_whole_runs(frames) if workload is None else workload in whole_runs(frames)
    return "time of the whole program" if whole else "training time per epoch"


def unit(frames: Mapping[str, pd.DataFrame], workload: str) -> str:
    """Return the word for what the time of a workload is of: `epoch`, or `run`."""
    return "run" if workload in whole_runs(frames) else "epoch"


def is_main_reference(frame: pd.DataFrame, configurations: pd.DataFrame) -> pd.Series:
    """Return for each row whether it is of a main reference, or of a workload trained by a fit."""
    is_main = configurations["reference"] == 1
    main = configurations[is_main | configurations["fit"]]
    return is_among(frame, set(names_of_rows(main)))


def fastest(frames: Mapping[str, pd.DataFrame], most: int = MOST) -> dict[str, pd.DataFrame]:
    """Return tables with the configurations that a figure shows.

    Of each dataset and workload these are the fastest, each with its main reference, and those
    without a time last. The table of runs keeps all: they name configurations, and figures name
    the runs without result.

    Parameters
    ----------
    most : configurations of a dataset and workload, references included; at least one is shown
        with its reference.
    """
    configurations, speedup = frames["configurations"], frames["speedup"]
    against_main = speedup[speedup["reference"] == 1]
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
            wider = selected | ({names, reference_of.get(names, names)} & known)
            if selected and len(wider) > most:
                break
            selected = wider
        shown |= selected
    if shown == known:
        return dict(frames)
    return {
        name: frame[is_among(frame, shown)]
        if name != "runs" and set(CONFIGURATION) <= set(frame)
        else frame
        for name, frame in frames.items()
    }


def is_among(frame: pd.DataFrame, names: Collection[tuple]) -> pd.Series:
    """Return for each row of a table whether its configuration is among some."""
    return pd.Series([row in names for row in names_of_rows(frame)], index=frame.index, dtype=bool)


def names_of_rows(frame: pd.DataFrame, columns: Sequence[str] = CONFIGURATION) -> Iterator[tuple]:
    """Yield the configuration of each row of a table: the values of `CONFIGURATION`."""
    return frame[list(columns)].itertuples(index=False, name=None)


def classes_without_tests(pooled: pd.DataFrame) -> list[str]:
    """Return the classes that have no test rows in any split, as `class (dataset)`."""
    without = pooled.loc[pooled["actual"] == 0, ["class", "dataset"]].drop_duplicates()
    return [f"{label} ({dataset})" for label, dataset in without.itertuples(index=False)]


def add_labels(
    frame: pd.DataFrame, runs: pd.DataFrame, varying: Iterable[str] = ("variant", "network")
) -> pd.DataFrame:
    """Add the column `label`: a short name of each row's configuration.

    It holds strategy and layout, and those of the keys `varying` that vary among `runs`. If rows
    name a reference, `reference_label` is its name, without the dataset and the workload.
    """
    keys = ["strategy", "layout", *(key for key in varying if runs[key].nunique() > 1)]
    labels = {"label": keys}
    if "reference_strategy" in frame:
        labels["reference_label"] = [f"reference_{k}" for k in keys if k in Configuration._fields]
    joined = {
        name: [" ".join(row) for row in frame[columns].fillna("").itertuples(index=False)]
        for name, columns in labels.items()
    }
    return frame.assign(
        **{name: pd.Series(words, frame.index, object) for name, words in joined.items()}
    )
