"""Build the table of ratios of each configuration to each reference, in pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from escala.analysis.statistics import Interval, median_interval
from escala.analysis.verdicts import verdict
from escala.experiment.references import Configuration, compared_with
from escala.record.comparable import CONFIGURATION, Measurement, Pairs, left_out, paired
from escala.report.tables import noise
from escala.report.tables.base import (
    Evidence,
    by_configuration,
    is_timed,
    of_pilot,
    poorest,
    ratio_interval,
    reasons,
    reference_columns,
)
from escala.runtime.layout import Layout

#: Decimals of a ratio in sentences and in the table of configurations.
DECIMALS = 2


class Comparison(NamedTuple):
    """A configuration and a reference, with the pairs of their runs.

    Attributes
    ----------
    names : values of `CONFIGURATION`; `of_reference` are those of the reference.
    number : of the reference, 1 the main one.
    pairs : of runs whose times count.
    """

    names: tuple
    number: int
    of_reference: tuple
    pairs: Pairs

    @property
    def reference(self) -> Configuration:
        return Configuration(*self.of_reference[2:])


def comparisons(evidence: Evidence) -> Iterator[Comparison]:
    """Yield each configuration that is trained by steps with each reference of it."""
    usable = by_configuration(run for run in evidence.found if is_timed(run))
    for names, group in evidence.runs.groupby(list(CONFIGURATION), sort=False):
        if group["training_kind"].iloc[0] == "fit":
            continue
        for number, reference in compared_with(Configuration(*names[2:]), evidence.references):
            of_reference = (*names[:2], *reference)
            pairs = paired(usable.get(names, ()), usable.get(of_reference, ()))
            yield Comparison(names, number, of_reference, of_pilot(pairs, evidence))


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each configuration and each reference that it is compared with."""
    by_name, by_file = by_configuration(evidence.found), evidence.runs.set_index("file")
    floors = {
        tuple(row[key] for key in CONFIGURATION): row["floor"] for row in noise.rows(evidence)
    }
    groups = dict(iter(evidence.runs.groupby(list(CONFIGURATION), sort=False)))
    for names, number, of_reference, pairs in comparisons(evidence):
        group, reference = groups[names], Configuration(*of_reference[2:])
        mine, theirs = (
            by_file.loc[[run["file"] for run in side]] for side in (pairs.runs, pairs.references)
        )
        quotients = _quotients(mine, theirs, "train_seconds_per_epoch")
        ratio = ratio_interval(quotients, pairs, evidence)
        speedup = inverse(ratio)
        cores, baseline = (_setting(by_name.get(each), _cores) for each in (names, of_reference))
        share = baseline / cores if baseline else None
        batch, other_batch = (
            _setting(by_name.get(each), _global_batch) for each in (names, of_reference)
        )
        of_target, floor = _target_ratio(mine, theirs), floors.get(of_reference)
        yield {
            **dict(zip(CONFIGURATION, names, strict=True)),
            **reference_columns(number, reference),
            "ranks": Layout.parse(Configuration(*names[2:]).layout).ranks,
            "cores": cores,
            "reference_cores": baseline,
            "global_batch": batch,
            "reference_global_batch": other_batch,
            "oversubscribed": bool(group["oversubscribed"].any()),
            "other_hosts": any(map(_on_other_hosts, mine["hosts"], theirs["hosts"])),
            "pairs": len(mine),
            "kind": poorest(pd.concat([mine["kind"], theirs["kind"]])),
            "reason": left_out(len(mine), pairs.refused)
            if len(mine)
            else _unpaired(by_name[names], by_name.get(of_reference, ()), reference, pairs),
            "sessions": mine["session"].nunique(),
            "noise_floor": floor,
            **_verdict(ratio, len(mine), None if batch == other_batch else of_target, floor),
            **ratio.columns("ratio"),
            **speedup.columns("speedup"),
            **Interval(*(s and share and s * share for s in speedup)).columns("efficiency"),
            **of_target,
            "provenance": group["provenance"].iloc[0],
            "leaky": group["leaky"].iloc[0],
        }


def _verdict(ratio: Interval, pairs: int, of_target: dict | None, floor: float | None) -> dict:
    """Judge the ratio of the times, or with other batches that of the times to the target accuracy.

    Parameters
    ----------
    floor : the noise floor of the reference; None if it was not measured.
    """
    if not pairs:
        return {}
    if of_target:
        ratio = Interval(
            *(of_target[f"time_to_target_ratio{end}"] for end in ("", "_low", "_high"))
        )
        pairs = of_target["time_to_target_pairs"]
    found = verdict(ratio, pairs, floor, DECIMALS)
    return {"verdict": found.kind, "visible_decrease": found.visible}


def inverse(ratio: Interval) -> Interval:
    """Return the speed-up of a ratio of times, with its interval."""
    return Interval(*(1 / r if r else None for r in (ratio.estimate, ratio.high, ratio.low)))


def _on_other_hosts(mine: str, theirs: str) -> bool:
    """Return whether neither run's hosts, joined by `;`, are among the other's."""
    one, other = set(mine.split(";")), set(theirs.split(";"))
    return not (one <= other or other <= one)


def _setting(runs: Sequence[Measurement] | None, of: Callable[[Measurement], int]) -> int | None:
    """Return a setting of a configuration from its current runs."""
    return next((of(run) for run in runs or () if run["current"]), None)


def _cores(run: Measurement) -> int:
    """Return the cores that a run requests, over all its ranks."""
    return run["ranks"]["asked"] * run["knobs"]["cores_per_process"]


def _global_batch(run: Measurement) -> int:
    return run["training"]["global_batch"]


def _quotients(mine: pd.DataFrame, theirs: pd.DataFrame, column: str) -> np.ndarray:
    return mine[column].to_numpy() / theirs[column].to_numpy()


def _target_ratio(mine: pd.DataFrame, theirs: pd.DataFrame) -> dict:
    """Compare the times to the target accuracy of pairs of runs.

    A run that did not reach it would have taken longer than it ran: the ratio of such a pair has
    only an upper or a lower bound.
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
    reference: Configuration,
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
        f"no run that ended ok, not resumed, shares session and repeat with one of {reference}"
        + (f"; older sessions do not count: {'; '.join(sorted(older))}" if older else "")
    )


def _failures(runs: Sequence[Measurement]) -> str:
    return reasons(pd.DataFrame([run for run in runs if run["current"]]))
