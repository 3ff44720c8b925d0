"""Say where steps spend time on memory that was given back to the system, and how to keep it."""

from __future__ import annotations

from collections.abc import Iterator

from escala.core.engines import ENGINES
from escala.report.findings.best_use import shown
from escala.report.findings.words import Finding, Tables, among, quoted, significant, with_labels

POSITION = 25
SECTION = "why"

#: The part of the core time in the kernel from which it is told.
KERNEL_FRACTION = 0.05
#: Page faults in a second of core time from which the kernel's time is of them. One took 3 to 6 µs
#: on virtual machines, so these take 3 to 6 %. Waiting for other ranks is time in the kernel too.
FAULTS_PER_SECOND = 10_000


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Name what answers, and its references, if the kernel clears much memory in their steps."""
    rows = among(with_labels(tables["configurations"], tables), shown(tables))
    rows = rows[rows["kernel_fraction"] >= KERNEL_FRACTION]
    rows = rows[rows["faults_per_step"] >= FAULTS_PER_SECOND * rows["core_seconds_per_step"]]
    for row in rows.itertuples():
        yield Finding(
            f"In a step of {quoted(row.label)}, the kernel takes {100 * row.kernel_fraction:.0f} % "
            f"of the core time: it clears given-back memory, in {significant(row.faults_per_step)} "
            "page faults.",
            "configurations",
        )
    kinds = set(rows["training_kind"])
    if "steps" in kinds:
        yield Finding(
            "To keep the memory from step to step, leave out `keep_memory: false`.",
            "configurations",
        )
    if "command" in kinds:
        variables = [each for engine in ENGINES.values() for each in engine.keep_memory.items()]
        lines = " ".join(f"{name}={value}" for name, value in variables)
        yield Finding(
            f"To keep the memory of a program's tensors, call `export {lines}` before it.",
            "configurations",
        )
