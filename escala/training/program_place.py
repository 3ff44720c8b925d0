"""Tell a program its place in the run: by words of its command and by environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from escala.core.variables import MARKS, THREADS, TRACED, restore_shell
from escala.strategies import STRATEGIES
from escala.strategies.base import Place
from escala.workloads.program import DATA, Program
from escala.workloads.program_copy import Moved
from escala.workloads.program_environment import environment

#: The folder of the module that programs may import.
HOOK = Path(__file__).resolve().parents[1] / "hook"
#: Variables of a rank that its program does not get: those of the project, which finds its modules
#: by `PYTHONPATH`, and those of a job step, because libraries would then start in another way.
_RANK_VARIABLES = re.compile(r"ESCALA_\w+|PYTHONPATH")
_JOB_STEP = re.compile(r"(SLURM|SLURMD|SRUN)_(?!CONF$|CLUSTERS$)\w+")


def values(
    plan: Mapping, place: Place, output: Path, paths: Mapping[str, str]
) -> dict[str, object]:
    """Return the value of each placeholder in the command of a rank.

    `output` is a folder of the run, for files of the program, and `paths` are those of the dataset,
    by name.
    """
    rows, ranks = plan["global_batch"], plan["ranks"]
    address, port = place.extra_addresses[0].rsplit(":", 1)
    rank = place.ranks[0]
    node_ranks = len(place.ranks) * place.processes_per_node
    return {
        "rows": rows,
        "rows_of_rank": rows_of_rank(rows, ranks, rank),
        "epochs": plan["epochs"],
        "seed": plan["seed"],
        "ranks": ranks,
        "rank": rank,
        "local_rank": place.local * len(place.ranks),
        "ranks_of_node": node_ranks,
        "nodes": place.nodes,
        "node": place.node,
        "cores": len(place.cores),
        "address": address,
        "port": port,
        "output": output,
        **{f"{DATA}{name}": moved_of(plan).path(path) for name, path in paths.items()},
    }


def moved_of(plan: Mapping) -> Moved:
    """Return where the paths of a program are in the copy of its folder, if the run has one."""
    return Moved(**plan["start"].get("copy", {}))


def rows_of_rank(rows: int, ranks: int, rank: int) -> int:
    """Return the rows of a step for a rank; the first ranks take the remainder, one row each."""
    return rows // ranks + (rank < rows % ranks)


def variables(
    plan: Mapping, place: Place, told: Path, given: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of the program of a rank, from that of the rank, `given`.

    The hook writes its marks into the folder `told`.
    """
    moved = moved_of(plan)
    program = moved.program(Program.from_plan(plan["start"]["program"]))
    strategy, given = STRATEGIES[plan["strategy"]], restore_shell(given)
    found = {
        name: value
        for name, value in given.items()
        if name in program.variables or _is_for_programs(name, strategy.meets_by == "mpi")
    }
    found = moved.variables(found)
    paths = filter(None, given.get("PYTHONPATH", "").split(os.pathsep))
    outside = [moved.path(path) for path in paths if Path(path).resolve() != HOOK.parents[1]]
    found |= strategy.process_variables(place, plan["start"]["interface"])
    found |= _threads(plan["knobs"]["threads"], place)
    found |= {MARKS: str(told), "PYTHONPATH": os.pathsep.join([str(HOOK), *outside])}
    if place.process == 0 and plan["instrument"] and TRACED in os.environ:
        found[TRACED] = os.environ[TRACED]
    if program.epoch_ends or program.step_ends:
        found["PYTHONUNBUFFERED"] = "1"
    return environment(program, found)


def _is_for_programs(name: str, mpi: bool) -> bool:
    """Return whether a rank's program gets a variable too; MPI needs those of the job step."""
    tells_rank = _RANK_VARIABLES.fullmatch(name) or THREADS.fullmatch(name)
    return not (tells_rank or (not mpi and _JOB_STEP.fullmatch(name)))


def _threads(threads: Mapping[str, int], place: Place) -> dict[str, str]:
    """Return the variables for the threads of a rank; 0 leaves the number to the library."""
    asked = {
        "TF_NUM_INTRAOP_THREADS": threads["intra_op"],
        "TF_NUM_INTEROP_THREADS": threads["inter_op"],
        "OMP_NUM_THREADS": threads["intra_op"] or max(1, len(place.cores) // len(place.ranks)),
    }
    return {name: str(number) for name, number in asked.items() if number}
