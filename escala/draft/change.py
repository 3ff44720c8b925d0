"""Measure what a trial suggests to change, without a change of the script: `escala try --apply`.

Each change is a variant of the experiment. It is added only if the trial shows what it helps
against.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from escala.core.files import read_yaml
from escala.core.variables import LOADER_WORKERS
from escala.draft.file import PROCESSES, THREADS, Draft
from escala.draft.trial import Trial
from escala.report.findings.why import (
    INPUT_FRACTION,
    KEEP_MEMORY,
    LOADER,
    MEMORY,
    clears_memory,
)
from escala.report.tables.runs import core_use, input_fraction, loader_workers


def add(draft: Draft, trials: Iterable[Trial]) -> Iterator[str]:
    """Add to a draft the changes that its trials suggest; yield sentences on them."""
    results = [trial.result for trial in trials if trial.result]
    uses = [use for use in map(core_use, results) if use["faults_per_step"]]
    faulting = [use for use in uses if use["kernel_fraction"] and clears_memory(use)]
    waiting = max((input_fraction(result) or 0.0 for result in results), default=0.0)
    process, threads = (draft.settings["variants"].get(name) for name in (PROCESSES, THREADS))
    changes = []
    if faulting:
        changes.append(MEMORY)
        part = max(use["kernel_fraction"] for use in faulting)
        yield (
            f"The kernel takes {100 * part:.0f} % of the core time, and clears memory. {MEMORY} "
            f"keeps it: {KEEP_MEMORY}"
        )
    if waiting >= INPUT_FRACTION:
        waits = f"It waits for the next batch in {100 * waiting:.0f} % of a step."
        if any(map(loader_workers, results)):
            yield f"{waits} Its loader has workers: give it more, or make a row in less time."
        elif threads and threads["cores_per_process"] >= 2 * process["cores_per_process"]:
            changes.append(LOADER)
            yield f"{waits} {LOADER} gives each DataLoader num_workers=1, and the worker a core."
        else:
            yield f"{waits} There is no core for a worker that loads batches."
    elif not faulting:
        yield (
            "--apply adds nothing: the kernel clears little memory, and a step waits little for "
            "its next batch, as far as that is known."
        )
    draft.settings.update(_with_changes(draft.settings, changes))


def is_applied(draft: Draft, file: Path) -> bool:
    """Return whether a file has the settings of a draft, and changes that `add` added to them."""
    try:
        settings = read_yaml(file)
        changes = {MEMORY, LOADER} & {*settings["variants"]}
    except Exception:  # It is missing, or no draft; `Draft.content` refuses it then.
        return False
    return bool(changes) and settings == _with_changes(draft.settings, changes)


def _with_changes(settings: dict[str, Any], changes: Collection[str]) -> dict[str, Any]:
    """Return the settings of a draft with a variant for each change."""
    settings = deepcopy(settings)
    workload, *_ = settings["workloads"].values()
    environment = workload.get("environment", {})
    variants, configurations = settings["variants"], settings["configurations"]
    first, unchanged = configurations[0], variants[PROCESSES]

    def after(line: str) -> dict[str, Any]:
        """Return the environment of the program, with one more line before the command."""
        return {"environment": environment | {"lines": [*environment.get("lines", ()), line]}}

    if LOADER in changes:
        cores = unchanged["cores_per_process"]
        variants[LOADER] = {
            "cores_per_process": 2 * cores,
            "threads": {"intra_op": cores, "inter_op": cores},
            **after(f"export {LOADER_WORKERS}=1"),
        }
        layouts = first["layouts"][:1]
        configurations.append(first | {"layouts": layouts, "variants": [LOADER]})
    if MEMORY in changes:
        variants[MEMORY] = unchanged | after(KEEP_MEMORY)
        first["variants"].append(MEMORY)
        largest = {"strategy": first["strategy"], "layout": first["layouts"][-1]}
        if len(first["layouts"]) > 1:
            settings["references"].append(largest | {"variant": PROCESSES})
    return settings
