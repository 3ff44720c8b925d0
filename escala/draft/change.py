"""Measure what a trial suggests to change, without a change of the script: `escala try --apply`.

Each change is a variant of the experiment. It is added only if the trial shows what it helps
against.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    if not faulting and waiting < INPUT_FRACTION:
        yield (
            "--apply adds nothing: the kernel clears little memory, and a step waits little for "
            "its next batch, as far as that is known."
        )
    if faulting:
        _add_memory(draft)
        part = max(use["kernel_fraction"] for use in faulting)
        yield (
            f"The kernel takes {100 * part:.0f} % of the core time, and clears memory. {MEMORY} "
            f"keeps it: {KEEP_MEMORY}"
        )
    if waiting >= INPUT_FRACTION:
        waits = f"It waits for the next batch in {100 * waiting:.0f} % of a step."
        if any(map(loader_workers, results)):
            yield f"{waits} Its loader has workers: give it more, or make a row in less time."
        elif _has_core(draft):
            _add_loader(draft)
            yield f"{waits} {LOADER} gives each DataLoader num_workers=1, and the worker a core."
        else:
            yield f"{waits} There is no core for a worker that loads batches."


def is_applied(draft: Draft, file: Path) -> bool:
    """Return whether a file has the settings of a draft, and changes that `add` added to them."""
    try:
        settings = read_yaml(file)
        added = {MEMORY, LOADER} & {*settings["variants"]}
        for name in added:
            del settings["variants"][name]
        for entry in settings["configurations"]:
            entry["variants"] = [name for name in entry["variants"] if name not in added]
        settings["configurations"] = [e for e in settings["configurations"] if e["variants"]]
        if MEMORY in added:
            further, references = _references(settings), settings["references"]
            settings["references"] = [one for one in references if one not in further]
    except Exception:  # It is missing, or no draft; `Draft.content` refuses it then.
        return False
    return bool(added) and settings == draft.settings


def _references(settings: dict[str, Any]) -> list[dict[str, str]]:
    """Return what the largest layout is compared with, if it is none of the references."""
    first, *_ = settings["configurations"]
    if len(first["layouts"]) == 1:
        return []
    largest = {"strategy": first["strategy"], "layout": first["layouts"][-1]}
    return [largest | {"variant": PROCESSES}]


def _add_memory(draft: Draft) -> None:
    settings = draft.settings
    variants, (first, *_) = settings["variants"], settings["configurations"]
    variants[MEMORY] = variants[PROCESSES] | _with_line(draft, KEEP_MEMORY)
    first["variants"] = [*first["variants"], MEMORY]
    settings["references"] += _references(settings)


def _has_core(draft: Draft) -> bool:
    """Return whether one process leaves as many cores as it has, for what loads its batches."""
    process, threads = (draft.settings["variants"].get(name) for name in (PROCESSES, THREADS))
    return bool(threads) and threads["cores_per_process"] >= 2 * process["cores_per_process"]


def _add_loader(draft: Draft) -> None:
    variants, configurations = (draft.settings[key] for key in ("variants", "configurations"))
    cores = variants[PROCESSES]["cores_per_process"]
    variants[LOADER] = {
        "cores_per_process": 2 * cores,
        "threads": {"intra_op": cores, "inter_op": cores},
        **_with_line(draft, f"export {LOADER_WORKERS}=1"),
    }
    first, *_ = configurations
    configurations.append(first | {"layouts": first["layouts"][:1], "variants": [LOADER]})


def _with_line(draft: Draft, line: str) -> dict[str, Any]:
    """Return the environment of the draft's program with one more line."""
    workload, *_ = draft.settings["workloads"].values()
    environment = workload.get("environment", {})
    return {"environment": environment | {"lines": [*environment.get("lines", ()), line]}}
