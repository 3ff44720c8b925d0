"""Find the cause in what a launcher printed: it begins with it, and goes on with what followed."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LONGEST = 800
#: Lines of Open MPI, PMIx and SLURM that say nothing of a cause.
_NOISE = re.compile(
    r"""^[-=*\s]*$
    | ^Primary\ job\s+terminated\ normally | ^a\ non-zero\ exit\ code\.
    | ^(mpirun|prterun)\ detected\ that\ one\ or\ more\ processes\ exited
    | ^(thus\ causing\ )?the\ job\ to\ be\ terminated\.
    | ^Process\ name:\ \[ | ^It\ looks\ like\ \w+\ failed\ for\ some\ reason
    | ^likely\ to\ abort\. | ^fail\ during\ \w+[;\ ] | ^environment\ problems\.
    | ^problems\)\.\ \ This\ failure | ^here's\ some\ additional\ information
    | ^Open\ MPI\ developer\)
    | ^additional\ information\ \(which | ^developer\):
    | more\ process(es\ have|\ has)\ sent\ help\ message | orte_base_help_aggregate
    | ^(\[\S+\]\ )?\*\*\*\ | Local\ abort\ before\ MPI_INIT
    | PMIX\ ERROR:\ UNREACHABLE | ORTE_ERROR_LOG:.*show_help\.c
    | ^srun:\ (Job\ step\ aborted|Terminating\ StepId) | ^slurmstepd:\ error:\ \*\*\*\ STEP
    """,
    re.VERBOSE,
)
#: Between two messages of Open MPI.
_RULE = re.compile(r"^-{20,}\n", re.MULTILINE)
#: A message of Open MPI that follows from another rank's. The first to arrive is printed first.
_CONSEQUENCE = re.compile(r"are unable to reach each other for|MPI process is unreachable")
#: The process that a line is from.
_SENDER = re.compile(r"^\[[\w.-]+:\d+\] (\[\[\d+,\d+\],\d+\] )?")
_TRACEBACK = "Traceback (most recent call last)"


def cause(said: str, lines: int = 6) -> str:
    """Return the first lines of a launcher's output that name a cause, or an empty text.

    Rules of dashes, Open MPI's remarks on its own end, and repeated lines are left out. Of a
    traceback only the error stays. What follows from another message comes after it.
    """
    messages = sorted(_RULE.split(said), key=lambda message: bool(_CONSEQUENCE.search(message)))
    found = list(dict.fromkeys(_meaningful("".join(messages))))
    if not found:
        found = [line.strip() for line in said.splitlines() if re.search(r"\w", line)]
    return " | ".join(found[:lines])[:_LONGEST]


def _meaningful(said: str) -> Iterator[str]:
    inside = False
    for line in said.splitlines():
        if _TRACEBACK in line:
            inside = True
        elif inside and (line.startswith(" ") or not line.strip()):
            continue
        elif not _NOISE.search(line.strip()):
            inside = False
            yield _SENDER.sub("", line.strip())
