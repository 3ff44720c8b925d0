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
#: What ranks have announced, by number: `node`, `pid`, `started`, and what their probe adds.
Announced = dict[int, dict]


def announce(folder: Path, rank: int, node: int, **more: object) -> None:
    """Write `rank{rank}.pid`, by which the sampler of `node` finds this process."""
    content = {"node": node, "pid": os.getpid(), "started": proc.start_time(), **more}
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

    Ranks may announce themselves and end at any time. If no rank ever announces itself, this
    continues until it is stopped.

    Parameters
    ----------
    rows : returns the rows of a moment, from the ranks that have announced themselves so far.
    """
    output, ranks = folder / f"node{node}.{probe}.csv", {}
    begin = time.monotonic()
    with open(output, "w", newline="", buffering=1, encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        for number in count(1):
            for path in folder.glob("rank*.pid"):
                rank = int(re.search(r"\d+", path.name)[0])
                if rank not in ranks:
                    ranks[rank] = read_json(path)
            here = {rank: entry for rank, entry in ranks.items() if entry["node"] == node}
            running = [proc.is_running(rank["pid"], rank["started"]) for rank in here.values()]
            writer.writerows(rows(here))
            if here and not any(running):
                return output
            time.sleep(max(0.0, begin + number * seconds - time.monotonic()))


def tables(folder: Path, probe: str) -> dict[int, pd.DataFrame]:
    """Return the samples of each node of a run by its number, with NaN for missing values."""
    import pandas as pd

    return {
        int(path.name.partition(".")[0].removeprefix("node")): pd.read_csv(path)
        for path in sorted(folder.glob(f"node*.{probe}.csv"))
    }


def command(module: str, folder: Path, seconds: float, of: str) -> list[str]:
    """Return the command that starts the sampler of a probe; `of` is what else it needs."""
    return [sys.executable, "-m", module, str(folder), f"{seconds:g}", of]


def arguments() -> tuple[Path, int, float, str]:
    """Return folder, node, seconds and `of` of this sampler. It dies with its parent."""
    die_with_parent()
    folder, seconds, of = sys.argv[1:]
    return Path(folder), int(os.environ.get("SLURM_NODEID", 0)), float(seconds), of
