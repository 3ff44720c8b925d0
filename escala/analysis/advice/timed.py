"""Make candidates of what was measured alone, where nothing is calibrated."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from escala.analysis.advice.candidates import ONLY_STEPS, Candidate, Training, names_of
from escala.analysis.advice.measured import drawn
from escala.analysis.cost_model.predict import Setup
from escala.analysis.statistics import Interval
from escala.experiment.references import Configuration
from escala.runtime.layout import Layout

NOT_MEASURED = "no run of it has a time, and nothing was calibrated (escala run advice)"


def times(folder: Path) -> list[dict]:
    """Return the rows of the table `configurations` with a time; none without the table.

    Processes that share cores have no time that counts.

    Parameters
    ----------
    folder : of the experiment.
    """
    file = folder / "tables" / "configurations.csv"
    if not file.is_file():
        return []
    table = pd.read_csv(file, keep_default_na=False, na_values=[""])
    known = table["train_seconds_per_epoch"].notna() & table["oversubscribed"].ne(True)
    return table[known].to_dict("records")


def timed_candidates(
    timed: Sequence[Mapping], planned: Sequence[Mapping], training: Training, draws: int
) -> tuple[list[Candidate], dict[Configuration, str]]:
    """Return the measured configurations of one dataset and workload with the same rows in a step.

    Parameters
    ----------
    timed : the rows of `times`.
    planned : configurations, as `escala.experiment.planned.planned` returns them.

    Returns
    -------
    The candidates, and for each other configuration the reason why it is not a candidate.
    """
    keys = ("dataset", "workload", *Configuration._fields)
    rows = {tuple(row[key] for key in keys): row for row in timed}
    known = [each for each in planned if not each["unavailable"]]
    first = [each for each in known if each["layout"] == "1x1"] or known
    found, refused = [], {}
    for each in planned:
        row = rows.get(tuple(each[key] for key in keys))
        if each["unavailable"] or row is None:
            refused[names_of(each)] = each["unavailable"] or NOT_MEASURED
        elif _rows(each, training) != _rows(first[0], training):
            refused[names_of(each)] = (
                f"it was measured with {each['rows']} rows in a step, and "
                f"{names_of(first[0])} with {first[0]['rows']}: it makes other updates"
            )
        else:
            found.append(_candidate(each, row, training, draws))
    return found, refused


def _rows(planned: Mapping, training: Training) -> int:
    return min(planned["rows"], training.train_rows or planned["rows"])


def _candidate(planned: Mapping, row: Mapping, training: Training, draws: int) -> Candidate:
    names = names_of(planned)
    ends = Interval(*(float(row[f"train{end}_seconds_per_epoch"]) for end in ("", "_low", "_high")))
    if np.isnan(ends.low) or np.isnan(ends.high):
        ends = Interval(ends.estimate, ends.estimate, ends.estimate)
    # With weak scaling an epoch of more ranks has more rows.
    own = planned.get("epoch_rows")
    share = training.train_rows / own if own and training.train_rows else 1.0
    order = np.random.default_rng(zlib.crc32(str(names).encode()))
    seconds = training.epochs * share * order.permutation(drawn(ends, draws))
    besides = float(row["wall_seconds"]) - float(row["total_train_seconds"])
    is_known = not np.isnan(besides)
    return Candidate(
        names,
        Setup(
            planned.get("work") or planned["program"],
            Layout.parse(planned["layout"]),
            _rows(planned, training),
            cores=planned["cores"],
            network=names.network,
        ),
        _rows(planned, training),
        None,
        seconds,
        seconds + besides if is_known else seconds,
        extrapolated=() if is_known else (ONLY_STEPS,),
    )
