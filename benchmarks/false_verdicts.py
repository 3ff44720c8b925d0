"""Measure how often equal configurations get a verdict, in simulated and in real sessions.

A session runs the reference, the configurations and the reference again, in turns. All of them take
the same time. The logarithm of the time of a run is the sum of noise, which is independent from run
to run, of a random walk, and of a trend over the session, upwards or downwards. Of each session one
configuration is judged as the table `speedup` judges it, so that verdicts are independent of each
other. A verdict `faster` or `slower` is false. Printed is their share, with the upper 95 % bound of
Clopper and Pearson (Biometrika 26 (1934), 404-413).

With --measured, noise, walk and trend are those of the runs in results folders. Half the squared
difference of the logarithms of two runs of a configuration, which began k runs after each other in
a session, is on average noise² + k walk² / 2 + k² trend² / 2 (a variogram). Non-negative least
squares over all such pairs of runs give the three.

With --sessions, real sessions are judged. Each folder holds an experiment with `noise_floor: true`,
such as experiments/noise/same.yaml. Judged are the second runs of each reference by their interval
alone, and with the noise floor each configuration whose knobs and settings are the reference's.

examples:
  uv run python benchmarks/false_verdicts.py
  uv run python benchmarks/false_verdicts.py --measured results/demo --pairs 7
  uv run python benchmarks/false_verdicts.py --sessions results/same
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats

from escala.analysis.measurements import read_run
from escala.analysis.statistics import LEVEL, VALUES_FOR_INTERVAL, Interval, median_interval
from escala.analysis.verdicts import (
    FASTER,
    SLOWER,
    drift,
    noise_floor,
    pairs_needed,
    stein_interval,
    verdict,
)
from escala.experiment.runs import AGAIN
from escala.record.comparable import CONFIGURATION, paired
from escala.report.history.rows import run_files
from escala.report.tables import runs
from escala.report.tables.base import is_timed
from escala.report.tables.speedup import DECIMALS


class Machine(NamedTuple):
    """Variation of the times of equal runs, as standard deviations of their logarithms.

    Attributes
    ----------
    noise : of each run.
    walk : of the change from each run to the next.
    trend : size of the steady change from each run to the next.
    """

    noise: float
    walk: float
    trend: float


#: Of the deviations that tests/unit/test_verdicts.py assumes, and a trend of 20 % over 40 runs,
#: as docs/decisions/005-sessions.md reports it.
ASSUMED = Machine(noise=0.04, walk=0.03, trend=float(np.log(1.2)) / 40)


def simulated(
    machine: Machine, random: np.random.Generator, pairs: int, configurations: int
) -> np.ndarray:
    """Return the times of a session, of shape (pairs, configurations + 2).

    The columns are the reference, the configurations, and the reference again.
    """
    number = pairs * (configurations + 2)
    walk = np.cumsum(random.normal(0, machine.walk, number))
    trend = random.choice([-1, 1]) * machine.trend * np.arange(number)
    noise = random.normal(0, machine.noise, number)
    return np.exp(noise + walk + trend).reshape(pairs, -1)


def is_false(ratio: Interval, pairs: int, floor: float | None) -> bool:
    """Return whether equal configurations get a verdict."""
    return verdict(ratio, pairs, floor, DECIMALS).kind in (FASTER, SLOWER)


def judged(times: np.ndarray, column: int) -> tuple[bool, bool]:
    """Return whether a column gets a false verdict: by its interval alone, and with the floor."""
    pairs, reference = len(times), times[:, 0]
    ratio = median_interval(times[:, column] / reference)
    floor = noise_floor(median_interval(times[:, -1] / reference))
    return is_false(ratio, pairs, None), is_false(ratio, pairs, floor)


def judged_by_stein(
    times: np.ndarray, column: int, pilot: int, half_width: float
) -> tuple[bool, bool]:
    """Return what `judged` returns, for the pairs that the pilot requires and Stein's intervals.

    Parameters
    ----------
    times : those of the largest number of pairs.
    """
    ratios = times[:, [column, -1]] / times[:, :1]
    pairs = max(pairs_needed(each, half_width, len(times)) for each in ratios[:pilot].T)
    ratio, of_itself = (stein_interval(each, pilot) for each in ratios[:pairs].T)
    return is_false(ratio, pairs, None), is_false(ratio, pairs, noise_floor(of_itself))


def upper_bound(false: int, number: int) -> float:
    """Return the one-sided upper bound of a share, by Clopper and Pearson."""
    found = stats.binomtest(false, number, alternative="less").proportion_ci(LEVEL, "exact")
    return float(found.high)


Runs = Sequence[Mapping[str, Any]]


def timed(folders: Iterable[Path]) -> dict[str, list[dict]]:
    """Return the runs of each session, in the order in which they began, each once.

    These are timing runs that are trained by steps, belong to no ladder and ended ok.
    """
    found: dict[str, dict[tuple, dict]] = defaultdict(dict)
    for folder in folders:
        for path in run_files(folder):
            run = read_run(path) | {"comparable": True, "file": str(path)}
            run |= {"current": True, "incomparable_because": None}
            usable = is_timed(run) and run["training"]["kind"] == "steps"
            if usable and run["instrument"] is None and run["pair"] in (None, AGAIN):
                name = (*(run[key] for key in (*CONFIGURATION, "pair", "repeat")), folder)
                found[run["session"]].setdefault(name, run | {"seconds": seconds(run)})
    return {
        session: sorted(of.values(), key=lambda run: run["started"])
        for session, of in sorted(found.items())
    }


def seconds(run: Mapping[str, Any]) -> float:
    """Return the training seconds of an epoch."""
    return runs.row(run)["train_seconds_per_epoch"]


def of_configuration(found: Runs) -> dict[tuple, list[int]]:
    """Return the places of the runs of each configuration in a session."""
    places: dict[tuple, list[int]] = defaultdict(list)
    for place, run in enumerate(found):
        places[tuple(run[key] for key in CONFIGURATION)].append(place)
    return places


def machine_of(sessions: Iterable[Runs]) -> Machine:
    """Return noise, walk and trend of the runs of some sessions, by their variogram."""
    lags, halves = [], []
    for found in sessions:
        logarithms = np.log([run["seconds"] for run in found])
        for places in of_configuration(found).values():
            for one, other in combinations(places, 2):
                lags.append(other - one)
                halves.append((logarithms[other] - logarithms[one]) ** 2 / 2)
    if len(lags) < 3:
        raise SystemExit("too few runs of a configuration in a session; name other folders")
    lag = np.array(lags, float)
    columns = np.stack([np.ones_like(lag), lag / 2, lag**2 / 2], axis=1)
    squares, _ = optimize.nnls(columns, np.array(halves))
    return Machine(*map(float, np.sqrt(squares)))


def real(session: str, found: Runs) -> Iterator[tuple[str, bool | None, bool | None]]:
    """Yield a line for each equal comparison of a session, and whether its verdict is false.

    The first truth value is that of the interval alone, the second that with the noise floor.
    """
    by_name: dict[tuple, list] = defaultdict(list)
    for run in found:
        by_name[(*(run[key] for key in CONFIGURATION), run["pair"])].append(run)
    moved = _drift(found)
    for (*names, pair), second in by_name.items():
        first = by_name.get((*names, None))
        if pair != AGAIN or not first:
            continue
        of_itself = _ratio(second, first)
        yield _line(session, names, "itself", of_itself, moved), _false(*of_itself, None), None
        floor = noise_floor(of_itself[0]) if of_itself[1] > 1 else None
        for (*others, side), runs_of in by_name.items():
            if side is None and others != names and _equal(runs_of[0], second[0]):
                ratio = _ratio(runs_of, first)
                line = _line(session, names, " ".join(others[2:]), ratio, moved)
                yield line, _false(*ratio, None), _false(*ratio, floor)


def _false(ratio: Interval, pairs: int, floor: float | None) -> bool | None:
    """Return whether equal runs get a verdict; None if there are too few pairs for any."""
    return None if pairs < VALUES_FOR_INTERVAL else is_false(ratio, pairs, floor)


def _ratio(mine: Runs, theirs: Runs) -> tuple[Interval, int]:
    pairs = paired(mine, theirs)
    ratios = [
        one["seconds"] / other["seconds"]
        for one, other in zip(pairs.runs, pairs.references, strict=True)
    ]
    return median_interval(ratios), len(ratios)


def _equal(one: Mapping, other: Mapping) -> bool:
    """Return whether two runs do the same, whatever their variants are called."""
    return all(one[key] == other[key] for key in (*CONFIGURATION[:4], "network", "knobs")) and one[
        "training"
    ].get("settings") == other["training"].get("settings")


def _drift(found: Runs) -> str:
    places = of_configuration(found)
    moments = {
        name: [datetime.fromisoformat(found[place]["started"]).timestamp() for place in of]
        for name, of in places.items()
    }
    spent = {name: [found[place]["seconds"] for place in of] for name, of in places.items()}
    moved = drift(moments, spent)
    if moved is None:
        return "unknown"
    return f"{100 * moved.change.estimate:+.1f} %{' (detected)' if moved.detected else ''}"


def _line(session: str, names: Sequence[str], other: str, ratio: tuple, moved: str) -> str:
    (estimate, low, high), pairs = ratio
    if low is None:
        return f"{session}  {' '.join(names[2:])}  {other}: {pairs} pairs, no interval"
    return (
        f"{session}  {' '.join(names[2:])}  {other}: {estimate:.3f} ({low:.3f} to {high:.3f}), "
        f"{pairs} pairs, drift {moved}"
    )


def _print(title: str, false: Sequence[bool]) -> None:
    if not false:
        return
    number, wrong = len(false), sum(false)
    print(
        f"{title}: {wrong} of {number} verdicts false, {100 * wrong / number:.1f} %, "
        f"upper 95 % bound {100 * upper_bound(wrong, number):.1f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verdicts", type=int, default=1000, help="simulated (default: 1000)")
    parser.add_argument("--pairs", type=int, default=6, help="of a session (default: 6)")
    parser.add_argument(
        "--configurations", type=int, default=3, help="beside the reference (default: 3)"
    )
    parser.add_argument("--half-width", type=float, default=0.05, help="for Stein (default: 0.05)")
    parser.add_argument("--at-most", type=int, default=40, help="pairs for Stein (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, help=f"of a run (default: {ASSUMED.noise})")
    parser.add_argument("--walk", type=float, help=f"from run to run (default: {ASSUMED.walk})")
    parser.add_argument(
        "--trend", type=float, help=f"from run to run (default: {ASSUMED.trend:.4f})"
    )
    parser.add_argument(
        "--measured",
        nargs="+",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="take the three from the runs in these folders results/NAME",
    )
    parser.add_argument("--sessions", nargs="+", type=Path, default=[], metavar="FOLDER",
                        help="judge the real sessions in these folders results/NAME")  # fmt: skip
    arguments = parser.parse_args()
    if arguments.verdicts < 1 or arguments.configurations < 1:
        parser.error("there is nothing to judge with these numbers")
    if arguments.pairs < VALUES_FOR_INTERVAL:
        parser.error(f"fewer than {VALUES_FOR_INTERVAL} pairs get no verdict")
    machine = machine_of(timed(arguments.measured).values()) if arguments.measured else ASSUMED
    given = {
        name: getattr(arguments, name)
        for name in Machine._fields
        if getattr(arguments, name) is not None
    }
    machine = machine._replace(**given)
    source = "measured" if arguments.measured else "assumed"
    print(
        f"{source}: noise {100 * machine.noise:.2f} % of a run, walk {100 * machine.walk:.2f} % "
        f"and trend {100 * machine.trend:.3f} % from run to run"
    )
    random = np.random.default_rng(arguments.seed)
    alone, floored, by_stein, stein_floored = [], [], [], []
    for _ in range(arguments.verdicts):
        most = max(arguments.at_most, arguments.pairs)
        times = simulated(machine, random, most, arguments.configurations)
        column = int(random.integers(1, arguments.configurations + 1))
        for kept, found in zip(
            (alone, floored, by_stein, stein_floored),
            (
                *judged(times[: arguments.pairs], column),
                *judged_by_stein(times, column, arguments.pairs, arguments.half_width),
            ),
            strict=True,
        ):
            kept.append(found)
    _print(f"{arguments.pairs} pairs, interval alone", alone)
    _print(f"{arguments.pairs} pairs, with the noise floor", floored)
    stein = f"up to {arguments.at_most} pairs by Stein's rule"
    _print(f"{stein}, interval alone", by_stein)
    _print(f"{stein}, with the noise floor", stein_floored)
    if arguments.sessions:
        _print_real(timed(arguments.sessions))


def _print_real(sessions: Mapping[str, Runs]) -> None:
    alone, floored = [], []
    for session, found in sessions.items():
        for line, by_interval, with_floor in real(session, found):
            print(line)
            alone += [] if by_interval is None else [by_interval]
            floored += [] if with_floor is None else [with_floor]
    if not alone:
        raise SystemExit("no session has second runs of a reference; set noise_floor: true")
    _print("real sessions, interval alone", alone)
    _print("real sessions, with the noise floor", floored)


if __name__ == "__main__":
    main()
