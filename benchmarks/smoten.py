"""Compare SMOTEN here and in imbalanced-learn: seconds, peak memory, and rows that agree.

Each run has a process of its own, which maps the rows from a file, times `fit_resample` alone and
reports its largest resident set, which holds the interpreter, the libraries and what was mapped.
Runs of the two libraries alternate, and a ratio is of two runs that followed each other.

Data are mutated copies in lineages (`clones`: 20 a class, 2 % of the letters apart from the root of
the class, copies of each with 0, 1 or 5 mutations in 1000 letters and a run of N in every third) or
letters drawn independently (`independent`: no two rows alike, no position without variation).
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common import spread, turns


class Case(NamedTuple):
    """A problem: rows of each class, positions, rows wanted by label, and what to compare with."""

    data: str
    counts: list[int]
    positions: int
    wanted: dict[int, int]
    against: bool = False


LARGE = [13_300, 10_200, 600, 700, 800]
WANTED = dict.fromkeys(range(1, 5), 13_000)
CASES = {
    "pairs-clones": Case("clones", [5000, 2000], 1000, {1: 5000}, against=True),
    "pairs-independent": Case("independent", [5000, 2000], 1000, {1: 5000}, against=True),
    "one-class": Case("clones", [13_000, 600], 6000, {1: 13_000}),
    "five-classes": Case("clones", LARGE, 6000, WANTED),
    "five-classes-independent": Case("independent", LARGE, 6000, WANTED),
}
OURS, THEIRS = "escala", "imbalanced-learn"


def make(case: Case, folder: Path, seed: int) -> None:
    """Write the rows and labels of a case to `folder`."""
    random = np.random.default_rng(seed)
    y = random.permutation(np.repeat(np.arange(len(case.counts)), case.counts))
    if case.data == "independent":
        X = random.integers(0, 5, (len(y), case.positions), np.uint8)
    else:
        X = np.empty((len(y), case.positions), np.uint8)
        for label in range(len(case.counts)):
            root = random.integers(1, 5, case.positions, np.uint8)
            lineages = [_mutated(random, root, 0.02) for _ in range(20)]
            for row in np.flatnonzero(y == label):
                ancestor = lineages[random.integers(len(lineages))]
                X[row] = _mutated(random, ancestor, random.choice([0, 0.001, 0.005]))
                if random.random() < 1 / 3:
                    start = random.integers(case.positions)
                    X[row, start : start + case.positions // 50] = 0
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)


def _mutated(random: np.random.Generator, sequence: np.ndarray, rate: float) -> np.ndarray:
    mutated = sequence.copy()
    places = random.random(len(sequence)) < rate
    mutated[places] = random.integers(1, 5, places.sum())
    return mutated


def measure(library: str, folder: Path, wanted: dict[int, int], seed: int) -> None:
    """Enlarge the rows of `folder`; leave the result there, the seconds and the peak in bytes."""
    X = np.load(folder / "X.npy", mmap_mode="r", allow_pickle=False)
    y = np.load(folder / "y.npy", allow_pickle=False)
    begin = time.perf_counter()
    if library == OURS:
        from escala.data.genomes.prepare.smoten import new_rows

        rows = np.concatenate([block for _, block in new_rows(X, y, wanted, 5, seed)])
    else:
        from imblearn.over_sampling import SMOTEN

        resampled, _ = SMOTEN(sampling_strategy=wanted, random_state=seed).fit_resample(X, y)
        rows = resampled[len(X) :]
    seconds = time.perf_counter() - begin
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    np.save(folder / f"{library}.npy", rows)
    np.save(folder / "cost.npy", [seconds, peak])


def in_process(function: Callable, *arguments: object) -> None:
    """Call a function in a fresh process: a peak is of the whole life of one."""
    process = get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{function.__name__}{arguments} ended with {process.exitcode}")


def run(name: str, case: Case, repeats: int, seed: int) -> None:
    """Measure a case and print what came out."""
    libraries = [OURS, THEIRS] if case.against else [OURS]
    costs: dict[str, list] = {library: [] for library in libraries}
    agreeing = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        in_process(make, case, folder, seed)
        for repeat in range(repeats):
            for library in turns(libraries, repeat):
                in_process(measure, library, folder, case.wanted, seed + repeat)
                costs[library].append(np.load(folder / "cost.npy"))
            if case.against:
                ours, theirs = (np.load(folder / f"{library}.npy") for library in libraries)
                agreeing.append(float((ours == theirs).all(axis=1).mean()))
    print(f"{name}: {case.data}, {case.counts} rows x {case.positions}, wanted {case.wanted}")
    for library in libraries:
        seconds, peaks = np.transpose(costs[library])
        print(f"  {library}: {spread(seconds)} s, peak {spread(peaks / 1e6, '.0f')} MB")
    if case.against:
        ratios = [theirs[0] / ours[0] for ours, theirs in zip(*costs.values(), strict=True)]
        print(f"  times faster, match by match: {spread(ratios, '.0f')}")
        print(f"  new rows that agree: {spread(agreeing, '.4f')}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all without any")
    parser.add_argument("--repeats", type=int, default=3, help="runs, or matches, a case")
    parser.add_argument("--seed", type=int, default=0, help="of the data, and of the first run")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    for name in arguments.cases or CASES:
        run(name, CASES[name], arguments.repeats, arguments.seed)


if __name__ == "__main__":
    main()
