"""Sample a node while its ranks run, from one process alongside them.

A rank announces itself in the run's `ranks/` folder, by `rank{n}.pid`. The sampler writes
`node{n}.{probe}.csv` there until all ranks of its node have ended. It starts with the ranks, so it
loads no module that it does not need.
"""

from __future__ import annotations

import csv
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from escala.core import proc
from escala.core.children import die_with_parent
from escala.core.files import read_json, write_json

if TYPE_CHECKING:
    import pandas as pd

SAMPLE_SECONDS = 0.5
#: The content of `rank{n}.pid` by the number of the rank: `node`, `pid`, `started`, and what the
#: probe adds.
Announced = dict[int, dict]


def announce(folder: Path, rank: int, node: int, **facts: object) -> None:
    """Write `rank{rank}.pid`, by which the sampler of `node` finds this process."""
    content = {"node": node, "pid": os.getpid(), "started": proc.start_time(), **facts}
    write_json(folder / f"rank{rank}.pid", content, durable=False)


def sample(
    folder: Path,
    node: int,
    probe: str,
    columns: Sequence[str],
    rows: Callable[[Announced], Iterable[Sequence]],
    seconds: float,
) -> Path:
    """Write rows every `seconds`, until all ranks of the node have ended; return the table's path.

    Ranks may announce themselves and end at any time. If no rank ever announces itself, sampling
    continues until the process is stopped.

    Parameters
    ----------
    rows : function from the ranks that have announced themselves so far to the rows of this moment.
    """
    output, ranks = folder / f"node{node}.{probe}.csv", {}
    begin = time.monotonic()
    with open(output, "w", newline="", buffering=1, encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        for turn in count(1):
            for path in folder.glob("rank*.pid"):
                number = int(re.search(r"\d+", path.name)[0])
                if number not in ranks:
                    ranks[number] = read_json(path)
            on_node = {number: rank for number, rank in ranks.items() if rank["node"] == node}
            running = [proc.is_running(rank["pid"], rank["started"]) for rank in on_node.values()]
            writer.writerows(rows(on_node))
            if on_node and not any(running):
                return output
            time.sleep(max(0.0, begin + turn * seconds - time.monotonic()))


def read_samples(folder: Path, probe: str) -> dict[int, pd.DataFrame]:
    """Return the samples of each node of a run by its number, with NaN for missing values."""
    import pandas as pd

    return {
        int(path.name.partition(".")[0].removeprefix("node")): pd.read_csv(path)
        for path in sorted(folder.glob(f"node*.{probe}.csv"))
    }


def command(module: str, folder: Path, seconds: float, source: str) -> list[str]:
    """Return the command of a sampler, which reads `source`, such as a network interface."""
    return [sys.executable, "-m", module, str(folder), f"{seconds:g}", source]


def read_arguments() -> tuple[Path, int, float, str]:
    """Return folder, node, seconds and source of this sampler, and let it end with its parent."""
    die_with_parent()
    folder, seconds, source = sys.argv[1:]
    # One process of a step over all nodes: by ssh, or by srun.
    node = os.environ.get("ESCALA_PROCESS") or os.environ.get("SLURM_NODEID") or 0
    return Path(folder), int(node), float(seconds), source
