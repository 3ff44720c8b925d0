"""The table of the best use: the quickest configuration against others that train its model.

The answer of the page, the advice and the study read this table, so they name the same
configuration and verdict. Configurations that train another model have no row. The table
`configurations` says why.
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
from escala.analysis.verdicts import (
    FASTER,
    NO_VERDICT,
    NOT_DISTINGUISHABLE,
    simultaneous_level,
)
from escala.core.files import read_json
from escala.experiment.runs import MAIN, Configuration, reference_number
from escala.programs.marks import WHOLE
from escala.report.tables import base
from escala.report.tables.base import LAYOUT, NETWORK, TARGET, Evidence, Tables
from escala.report.tables.speedup import (
    Comparison,
    Judge,
    Judgement,
    runs_for_ratios,
    why_no_match,
)

#: The columns of a comparison at a look.
LOOKED_AT = (
    *CONFIGURATION, *(f"alternative_{part}" for part in CONFIGURATION[2:]), "matches", "ratio",
    "ratio_low", "ratio_high", "level", "verdict", "futile", "matches_to_decide",
)  # fmt: skip
#: Longest run that is projected, in epochs.
_MOST_EPOCHS = 10**6


class Task(NamedTuple):
    """Configurations of a dataset and workload that train the same model over one network.

    Attributes
    ----------
    name : what distinguishes the task from others of the dataset and workload; None if there is no
        other.
    runs : a current run of each configuration, by the values of `CONFIGURATION`.
    """

    name: str | None
    runs: dict[tuple, Measurement]


def tasks(evidence: Evidence) -> Iterator[Task]:
    """Yield the tasks that have several configurations, in the order of the experiment.

    Left out are fits, ranks that exchange nothing, and emulated nodes that share cores.
    """
    current: dict[tuple, Measurement] = {}
    for names, runs in base.by_configuration(evidence.runs).items():
        run = next((run for run in runs if run["current"]), None)
        if run is None or is_fit(run) or other_exchange(run) is not None:
            continue
        if not (is_emulated(run) and run["ranks"]["oversubscribed"]):
            current[names] = run
    for _, same in groupby(current, key=lambda names: names[:2]):
        runs = {names: current[names] for names in same}
        # The network and the runs of each task; the network is None if a task has only one node.
        of_tasks: list[tuple[str | None, dict[tuple, Measurement]]] = []
        on_one_node = {names for names in runs if names[LAYOUT].nodes == 1}
        networks = dict.fromkeys(names[NETWORK] for names in runs if names not in on_one_node)
        for network in networks or [None]:
            over = {n: run for n, run in runs.items() if n[NETWORK] == network or n in on_one_node}
            models = _models(over, evidence)
            # A configuration that trains another model than a main reference is no use of the
            # resources.
            main = [model for model in models if MAIN in (_number(n, evidence) for n in model)]
            for model in main or models:
                # Each network has the same configurations of one node: they make only one task.
                if len(model) > 1 and all(model != other for _, other in of_tasks):
                    is_within_node = on_one_node.issuperset(model)
                    of_tasks.append((None if is_within_node else network, model))
        networks_of_tasks = [network for network, _ in of_tasks]
        for network, model in of_tasks:
            parts = []
            if network and len(set(networks_of_tasks)) > 1:
                parts.append(f"over {network}")
            if networks_of_tasks.count(network) > 1:
                rows = next(iter(model.values()))["training"]["global_batch"]
                parts.append(f"{rows} rows in a step")
            yield Task(", ".join(parts) or None, model)


def _number(names: tuple, evidence: Evidence) -> int | None:
    """Return the number of a reference (`MAIN` for the main one), None for any other."""
    return reference_number(Configuration(*names[2:]), evidence.references)


def _models(runs: dict[tuple, Measurement], evidence: Evidence) -> list[dict[tuple, Measurement]]:
    """Return the configurations of each model that is trained, the main reference's model first.

    Configurations with the same target accuracy count as one model, because each trains until it
    reaches that accuracy. This does not hold for weak scaling, which compares the time of a row.
    """
    models: list[dict[tuple, Measurement]] = []
    after_references = len(evidence.references) + 1
    for names in sorted(runs, key=lambda n: _number(n, evidence) or after_references):
        run = runs[names]
        for model in models:
            first = next(iter(model.values()))
            target, target_of_first = (
                member["training"]["target_accuracy"] for member in (run, first)
            )
            are_as_good = target is not None and target == target_of_first
            if (are_as_good and work(run, first) == 1) or other_updates(run, first) is None:
                model[names] = run
                break
        else:
            models.append({names: run})
    return models


def best_use(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each alternative of the quickest configuration of each task.

    The quickest has the least median time, unless a direct comparison finds another one quicker.
    """
    judge, timed = Judge(evidence, tables), runs_for_ratios(evidence)
    for task in tasks(evidence):
        level = simultaneous_level(len(task.runs) - 1, evidence.level)

        def compare(names: tuple, other: tuple, level=level) -> tuple[Comparison, Judgement]:
            compared = Comparison.of(names, other, timed)
            return compared, judge.judge(compared, level)

        seconds = {
            names: np.median([base.seconds_per_epoch(run) for run in timed[names]])
            for names in task.runs
            if names in timed
        }
        best = min(seconds or task.runs, key=lambda names: seconds.get(names, 0.0))
        # A direct comparison only uses runs of the same repeats, so its result may differ.
        for _ in task.runs:
            quicker = {}
            for other in task.runs:
                if other == best:
                    continue
                ratio = compare(best, other)[1].ratio
                least = ratio.low if ratio.estimate is None else ratio.estimate
                if least and least > 1:
                    quicker[other] = least
            if not quicker:
                break
            best = max(quicker, key=quicker.__getitem__)
        rows = [
            _row(task, level, *compare(best, other), judge) for other in task.runs if other != best
        ]
        # The closest alternative uses no more resources. Alternatives without a verdict go first,
        # then those that are not distinguishable from the best use, then those of least time.
        known = [row for row in rows if row["verdict"]]
        rivals = [row for row in known if row["uses"] != "more"] or known
        for kind in (NO_VERDICT, NOT_DISTINGUISHABLE):
            rivals = [row for row in rivals if row["verdict"] == kind] or rivals
        closest = max(rivals or rows[:1], key=lambda row: row["ratio"] or 0.0)
        yield from (row | {"closest": row is closest} for row in rows)


def looks(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each comparison that decided, at each look of the last session."""
    file = evidence.looks_file
    found = read_json(file)["looks"] if file and file.exists() else ()
    yield from ({"threshold": None} | row for row in found)  # Older ones have none.


def _row(task: Task, level: float, compared: Comparison, judged: Judgement, judge: Judge) -> dict:
    """Return the row of the quickest configuration and an alternative, without `closest`."""
    run, alternative = (task.runs[names] for names in (compared.names, compared.reference_names))
    resources, other_resources = base.resources_of(run), base.resources_of(alternative)
    differences = np.subtract(other_resources, resources)
    uses = "more" if (differences > 0).any() else "less" if (differences < 0).any() else "as much"
    pairs = compared.newest.pairs
    names = ("nodes", "cores", "gpus")
    ratio_of = "steps"
    steps = {base.steps_of_epoch(one) for one in (run, alternative)}
    if judge.basis(compared) == TARGET:
        ratio_of = "target"
    elif (run.get("program") or {}).get("known_by") == WHOLE:
        ratio_of = "run"
    elif len(steps) > 1 or None in steps:
        ratio_of = "epoch"
    return {
        **base.name_columns(compared.names),
        "task": task.name,
        **{
            f"alternative_{part}": value
            for part, value in zip(CONFIGURATION[2:], compared.reference_names[2:], strict=True)
        },
        **dict(zip(names, resources, strict=True)),
        **{f"alternative_{name}": n for name, n in zip(names, other_resources, strict=True)},
        "uses": uses,
        "configurations": len(task.runs),
        "disturbed_matches": compared.disturbed,
        "kind": base.least_certain(base.kind(run) for pair in pairs for run in pair),
        "reason": why_left_out(len(pairs), compared.newest.refused)
        if pairs
        else why_no_match(compared, judge),
        "verdict": judged.verdict.kind if pairs else None,
        "ratio_of": ratio_of,
        **judged.columns(uses),
        "epochs": run["training"]["epochs_asked"],
        **_whole_runs(compared, judged.verdict.kind == FASTER, level, judge),
        **base.data_of(run, base.ABOUT),
    }


def _whole_runs(compared: Comparison, is_faster: bool, level: float, judge: Judge) -> dict:
    """Return the columns on whole runs; empty if epochs were cut, or their numbers differ.

    Parameters
    ----------
    is_faster : whether the steps take less time. Only then may whole runs of some length take less
        time.
    """
    runs, references = compared.newest.runs, compared.newest.references
    numbers_of_epochs = {len(run["epochs"]) for run in (*runs, *references)}
    if any(map(base.is_cut, (*runs, *references))) or len(numbers_of_epochs) != 1:
        return {}

    def ratios(matches: Matched, epochs: int | None = None) -> np.ndarray:
        return _whole_seconds(matches.runs, epochs) / _whole_seconds(matches.references, epochs)

    def saves_time(epochs: int) -> bool:
        projected = judge.decide(compared, lambda matches: ratios(matches, epochs), level)
        return projected.verdict.kind == FASTER

    whole = judge.decide(compared, ratios, level)
    fewest = None
    if is_faster and saves_time(_MOST_EPOCHS):
        too_few, fewest = 0, _MOST_EPOCHS
        while fewest - too_few > 1:
            middle = (too_few + fewest) // 2
            if saves_time(middle):
                fewest = middle
            else:
                too_few = middle
    return {
        "run_seconds": float(np.median(_whole_seconds(runs))),
        "alternative_run_seconds": float(np.median(_whole_seconds(references))),
        **whole.ratio.columns("run_ratio"),
        "run_verdict": whole.verdict.kind,
        "faster_from_epochs": fewest,
    }


def _whole_seconds(runs: Sequence[Measurement], epochs: int | None = None) -> np.ndarray:
    """Return the seconds of whole runs, or their projection to another number of epochs."""
    walls = np.array([run["wall_seconds"] for run in runs])
    if epochs is None:
        return walls
    in_epochs = np.array([sum(e["epoch_wall_seconds"] for e in run["epochs"]) for run in runs])
    per_epoch = in_epochs / [len(run["epochs"]) for run in runs]
    return walls - in_epochs + epochs * per_epoch
