"""What benchmarks share: seconds of work, turns, the spread of what was measured, made-up genomes.

It imports little: some benchmarks measure the memory of a process that imports it.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path

#: Genomes of each class in the enlarged problem.
RECORDS = {"COVID": 13300, "DENGUE": 10200, "EBOLA": 600, "MERS": 700, "SARS": 800}


def seconds(work: Callable[..., object], *arguments: object) -> float:
    """Return how long work took."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def apart(work: Callable[[], object]) -> tuple[float, int]:
    """Return the seconds and the peak memory, in bytes, of work done in a process of its own."""
    context = get_context("fork")
    here, there = context.Pipe()

    def measured() -> None:
        spent = seconds(work)
        there.send((spent, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))

    process = context.Process(target=measured)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"a stage ended with exit code {process.exitcode}")
    return here.recv()


def turns(ways: Sequence, number: int) -> Sequence:
    """Return ways in the order of a round: one round forwards, the next one backwards."""
    return ways[:: 1 if number % 2 == 0 else -1]


def spread(values: Sequence[float], form: str = ".4g") -> str:
    """Return the median, the range and the number of some values."""
    low, middle, high = (f"{f(values):{form}}" for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high}, n = {len(values)})"


def interval(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, and its 95 % interval where there are enough values for one."""
    from escala.analysis.statistics import median_interval

    estimate, low, high = median_interval(values)
    between = "" if low is None else f" ({low:.{digits}f} to {high:.{digits}f})"
    return f"{estimate:.{digits}f}{between}"


def say(what: str, spent: Sequence[float]) -> None:
    print(f"{what}: {spread([1000 * each for each in spent])} ms", flush=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence]) -> None:
    print(f"\n| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


def on_cores(count: int = 1) -> None:
    """Keep this process and its threads on so many of its cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def tensorflow_threads(count: int = 1, inter_op: int = 1) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(inter_op)


def simulated(folder: Path, name: str, scale: float, difficulty: float) -> Path:
    """Return a folder with `scale` times `RECORDS` genomes, written if they are not there yet."""
    from escala.data.genomes.acquire import simulate

    target = folder / f"{name}-{scale:g}-{difficulty:g}"
    if not target.exists():
        records = {each: round(scale * count) for each, count in RECORDS.items()}
        source = {"seed": 1, "difficulty": difficulty, "records": records}
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder))
        simulate.fetch(source, list(RECORDS), unfinished)
        unfinished.rename(target)
    return target
