"""Measure what a trial suggests to change, without a change of the script: `escala try --apply`.

Each change is a variant of the experiment. It is added only if the trial shows what it helps
against.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
from escala.report.tables.runs import core_use, input_fraction


def add(draft: Draft, trials: Iterable[Trial]) -> Iterator[str]:
    """Add to a draft the changes that its trials suggest; yield sentences on them."""
    results = [trial.result for trial in trials if trial.result]
    variants, configurations = (draft.settings[key] for key in ("variants", "configurations"))
    first, cores = configurations[0], variants[PROCESSES]["cores_per_process"]
    added = []
    uses = [use for use in map(core_use, results) if use["faults_per_step"]]
    if faulting := [*filter(clears_memory, uses)]:
        added.append(MEMORY)
        variants[MEMORY] = variants[PROCESSES] | _with_line(draft, KEEP_MEMORY)
        first["variants"] = [*first["variants"], MEMORY]
        largest = {"strategy": first["strategy"], "layout": first["layouts"][-1]}
        reference = largest | {"variant": PROCESSES}
        if reference not in draft.settings["references"]:
            draft.settings["references"].append(reference)
        part = max(use["kernel_fraction"] for use in faulting)
        yield (
            f"The kernel takes {100 * part:.0f} % of the core time to clear memory. {MEMORY} keeps "
            f"it: {KEEP_MEMORY}"
        )
    waiting = max(
        (fraction for result in results if (fraction := input_fraction(result))), default=0
    )
    if waiting >= INPUT_FRACTION and THREADS in variants:
        added.append(LOADER)
        variants[LOADER] = {
            "cores_per_process": 2 * cores,
            "threads": {"intra_op": cores, "inter_op": cores},
            **_with_line(draft, f"export {LOADER_WORKERS}=1"),
        }
        layout = first["layouts"][0]
        configurations.append(first | {"layouts": [layout], "variants": [LOADER]})
        yield (
            f"It waits for the next batch in {100 * waiting:.0f} % of a step. {LOADER} gives "
            "each DataLoader `num_workers=1, persistent_workers=True`, and the worker a core."
        )
    if not added:
        yield (
            "--apply adds nothing: the kernel clears little memory, and a step waits little for "
            "its next batch, as far as that is known."
        )


def _with_line(draft: Draft, line: str) -> dict:
    """Return the environment of the draft's program with one more line."""
    workload, *_ = draft.settings["workloads"].values()
    environment = workload.get("environment", {})
    return {"environment": environment | {"lines": [*environment.get("lines", ()), line]}}
