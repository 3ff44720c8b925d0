"""The table of the best use: the quickest configuration against all that train the same model.

The answer of the page, the advice and the study read it, so they name one configuration and one
verdict. Configurations that train another model are in no row; `configurations` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from escala.analysis.comparable import (
    CONFIGURATION,
    Matched,
    Measurement,
    is_emulated,
    is_fit,
    other_exchange,
    other_updates,
    why_left_out,
    work,
)
from escala.analysis.statistics import VALUES_FOR_INTERVAL, fewest_matches
from escala.analysis.verdicts import (
    FASTER,
    NO_VERDICT,
    NOT_DISTINGUISHABLE,
    simultaneous_level,
)
from escala.experiment.runs import Configuration, reference_number
from escala.programs.marks import WHOLE
from escala.report.tables import base
from escala.report.tables.base import TARGET, Evidence, Tables
from escala.report.tables.speedup import (
    Comparison,
    Judge,
    Judgement,
    usable,
    why_no_match,
)

#: Longest run that is projected, in epochs.
_MOST_EPOCHS = 10**6


class Task(NamedTuple):
    """Configurations of a dataset and workload that train the same model over one network.

    Attributes
    ----------
    name : what tells it from the others; None if it is the only one.
    runs : a current run of each, by the values of `CONFIGURATION`.
    """

    name: str | None
    runs: dict[tuple, Measurement]


def tasks(evidence: Evidence) -> Iterator[Task]:
    """Yield the tasks that have several configurations, in the order of the experiment.

    Nodes of an emulated cluster that share cores are not there.
    """
    current = {
        names: run
        for names, runs in base.by_configuration(evidence.runs).items()
        if (run := next((run for run in runs if run["current"]), None))
        and not is_fit(run)
        and other_exchange(run) is None
        and not (is_emulated(run) and run["ranks"]["oversubscribed"])
    }
    for _, same in groupby(current, key=lambda names: names[:2]):
        runs = {names: current[names] for names in same}
        models_over: list[tuple[str | None, dict]] = []
        networks = dict.fromkeys(names[-1] for names in runs if names[3].nodes > 1)
        for network in networks or [None]:
            over = {n: run for n, run in runs.items() if n[-1] == network or n[3].nodes == 1}
            models = _models(over, evidence)
            # What trains another model than a main reference is no use of what is there.
            main = [model for model in models if 1 in (_number(n, evidence) for n in model)]
            for model in main or models:
                # Configurations of one node are the same over each network.
                if len(model) > 1 and all(model != other for _, other in models_over):
                    within = all(names[3].nodes == 1 for names in model)
                    models_over.append((None if within else network, model))
        for network, model in models_over:
            rows = next(iter(model.values()))["training"]["global_batch"]
            parts = {
                f"over {network}": network and len({other for other, _ in models_over}) > 1,
                f"{rows} rows in a step": sum(other == network for other, _ in models_over) > 1,
            }
            name = ", ".join(part for part, is_needed in parts.items() if is_needed)
            yield Task(name or None, model)


def _number(names: tuple, evidence: Evidence) -> int | None:
    """Return which reference a configuration is, 1 the main one; None if it is none."""
    return reference_number(Configuration(*names[2:]), evidence.references)


def _models(runs: dict[tuple, Measurement], evidence: Evidence) -> list[dict[tuple, Measurement]]:
    """Return configurations by the model that they train, that of the main reference first.

    A target accuracy makes all of them one: each is trained until it is as good. With weak scaling
    it does not, since the times that are compared are those of a row.
    """
    models: list[dict[tuple, Measurement]] = []
    for names in sorted(runs, key=lambda n: _number(n, evidence) or len(evidence.references) + 1):
        run = runs[names]
        for model in models:
            first = next(iter(model.values()))
            targets = [member["training"]["target_accuracy"] for member in (run, first)]
            as_good = targets[0] is not None and targets[0] == targets[1] and work(run, first) == 1
            if as_good or other_updates(run, first) is None:
                model[names] = run
                break
        else:
            models.append({names: run})
    return models


def best_use(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each alternative of the quickest configuration of each task.

    The quickest is that of the least time that no direct comparison contradicts.
    """
    judge, timed = Judge(evidence, tables), usable(evidence)
    for task in tasks(evidence):
        level = simultaneous_level(len(task.runs) - 1)

        def compare(names: tuple, other: tuple, level=level) -> tuple[Comparison, Judgement]:
            compared = Comparison.of(names, other, timed)
            return compared, judge.judge(compared, level)

        seconds = {
            names: np.median([base.seconds_per_epoch(run) for run in runs])
            for names in task.runs
            if (runs := timed.get(names))
        }
        best = min(seconds or task.runs, key=lambda names: seconds.get(names, 0.0))
        # By other matches than those of each time, another may be quicker.
        for _ in task.runs:
            others = [other for other in task.runs if other != best]
            ratios = {other: compare(best, other)[1].ratio for other in others}
            least = {
                other: ratio.low if ratio.estimate is None else ratio.estimate
                for other, ratio in ratios.items()
            }
            quicker = {other: times for other, times in least.items() if times and times > 1}
            if not quicker:
                break
            best = max(quicker, key=quicker.__getitem__)
        rows = [
            _row(task, level, *compare(best, other), judge) for other in task.runs if other != best
        ]
        # What decides is of the least time among those that use no more. Rows without a verdict
        # come first, then those that cannot be told from the best use.
        known = [row for row in rows if row["verdict"]]
        rivals = [row for row in known if row["uses"] != "more"] or known
        for kind in (NO_VERDICT, NOT_DISTINGUISHABLE):
            rivals = [row for row in rivals if row["verdict"] == kind] or rivals
        closest = max(rivals or rows[:1], key=lambda row: row["ratio"] or 0.0)
        yield from (row | {"closest": row is closest} for row in rows)


def _row(task: Task, level: float, compared: Comparison, judged: Judgement, judge: Judge) -> dict:
    run, other = (task.runs[names] for names in (compared.names, compared.reference_names))
    mine, theirs = base.resources_of(run), base.resources_of(other)
    uses_no_more = all(t <= m for m, t in zip(mine, theirs, strict=True))
    pairs = compared.newest.pairs
    names = ("nodes", "cores", "gpus")
    known_by = (run.get("program") or {}).get("known_by")
    ratio_of = (
        "target" if judge.basis(compared) == TARGET else "run" if known_by == WHOLE else "steps"
    )
    return {
        **base.name_columns(compared.names),
        "task": task.name,
        **{
            f"alternative_{part}": value
            for part, value in zip(CONFIGURATION[2:], compared.reference_names[2:], strict=True)
        },
        **dict(zip(names, mine, strict=True)),
        **{f"alternative_{name}": value for name, value in zip(names, theirs, strict=True)},
        "uses": "as much" if mine == theirs else "less" if uses_no_more else "more",
        "configurations": len(task.runs),
        "level": level,
        "disturbed_matches": compared.disturbed,
        "needed": max(VALUES_FOR_INTERVAL, fewest_matches(level)),
        "kind": base.least_certain(base.kind(run) for pair in pairs for run in pair),
        "reason": why_left_out(len(pairs), compared.newest.refused)
        if pairs
        else why_no_match(compared, judge),
        "verdict": judged.verdict.kind if pairs else None,
        "ratio_of": ratio_of,
        **judged.columns(),
        "epochs": run["training"]["epochs_asked"],
        **_whole_runs(compared, judged.verdict.kind == FASTER, level, judge),
        **base.data_of(run, base.ABOUT),
    }


def _whole_runs(compared: Comparison, is_faster: bool, level: float, judge: Judge) -> dict:
    """Return the columns on whole runs, empty if epochs were cut, or if numbers of them differ.

    Parameters
    ----------
    is_faster : whether the configuration takes less time, so that some length of a run may as well.
    """
    runs, references = compared.newest.runs, compared.newest.references
    done = {len(run["epochs"]) for run in (*runs, *references)}
    if any(map(base.is_cut, (*runs, *references))) or len(done) != 1:
        return {}

    def ratios(matches: Matched, epochs: int | None = None) -> np.ndarray:
        return np.divide(
            *(_whole_seconds(side, epochs) for side in (matches.runs, matches.references))
        )

    def saves(epochs: int) -> bool:
        projected = judge.decide(compared, lambda matches: ratios(matches, epochs), level)
        return projected.verdict.kind == FASTER

    whole = judge.decide(compared, ratios, level)
    fewest = None
    if is_faster and saves(_MOST_EPOCHS):
        low, fewest = 0, _MOST_EPOCHS
        while fewest - low > 1:
            middle = (low + fewest) // 2
            low, fewest = (low, middle) if saves(middle) else (middle, fewest)
    return {
        "run_seconds": float(np.median(_whole_seconds(runs))),
        "alternative_run_seconds": float(np.median(_whole_seconds(references))),
        **whole.ratio.columns("run_ratio"),
        "run_verdict": whole.verdict.kind,
        "faster_from_epochs": fewest,
    }


def _whole_seconds(runs: Sequence[Measurement], epochs: int | None = None) -> np.ndarray:
    """Return the seconds of whole runs, or what they would be with another number of epochs."""
    walls = np.array([run["wall_seconds"] for run in runs])
    if epochs is None:
        return walls
    inside = np.array([sum(e["epoch_wall_seconds"] for e in run["epochs"]) for run in runs])
    return walls - inside + epochs * inside / [len(run["epochs"]) for run in runs]
