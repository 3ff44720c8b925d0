"""Compare methods for the interval of a ratio of matches, on simulated and on real sessions.

A match is a run and the run of its reference in one repeat. The logarithm of the time of a run is
normal noise, or that of a machine with two speeds (`two`); some runs are disturbed, and take 15 to
90 % longer. A verdict is `faster` or `slower` as the table `speedup` gives it: the interval,
printed with two decimals, excludes 1. At a ratio of 1 every verdict is false.

methods    order statistics, signed ranks (Hodges and Lehmann) and Student's interval of the
           logarithms: false verdicts, coverage, width and verdicts at true ratios below and above
           1. `floor` has the verdicts that are also beyond the noise floor, which is the ratio of a
           duplicate of the reference; `far` those beyond the farther end of its interval.
next       the interval of the question "next time": that of signed ranks in one session, widened by
           how sessions differ; with matches that follow each other independently, or correlated.
looks      a session that decides when it stops (`repeats: {decide: true}`): verdicts and paired
           runs, beside those of 20 paired runs at 95 %; of one session alone, also with a threshold
           of 5 % (`faster` is below 1.05), and of "next time".
best       the best of k equal configurations, by its estimates, at the simultaneous level: how
           often it *pays*, is falsely quicker than a given other, and than any other.
sessions   sessions whose true ratios differ: Student's interval over the estimates of sessions, the
           interval of Hartung and Knapp (Statistics in Medicine 20 (2001), 3875-3889) with the
           variances within sessions, and one interval of all matches together.
disturbed  sessions of which other work hits some matches, the second side more than the first. Some
           of the hit runs are found. Verdicts if all matches are kept, if disturbed ones are left
           out, and if sessions with more than a half, a third or a fifth of them get none.
real       folders results/NAME of experiments with equal configurations or `noise_floor: true`,
           such as experiments/noise/same.yaml. Every ratio is judged by each method, and once more
           multiplied by 0.9, 0.8 and 0.65.

examples:
  uv run python -m benchmarks.interval_methods
  uv run python -m benchmarks.interval_methods best --draws 20000
  uv run python -m benchmarks.interval_methods disturbed --draws 20000
  uv run python -m benchmarks.interval_methods real results/same
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from escala.analysis.comparable import CONFIGURATION, match_runs
from escala.analysis.looks import LOOK_LEVEL, futility
from escala.analysis.measurements import read_run
from escala.analysis.statistics import (
    LEVEL,
    MATCHES_FOR_INTERVAL,
    Interval,
    deviation_of_sessions,
    rank_interval,
    session_half_width,
)
from escala.analysis.verdicts import simultaneous_level
from escala.experiment.runs import DUPLICATE
from escala.measure.plan import LOOKS
from escala.report.history import run_files
from escala.report.tables import runs
from escala.report.tables.base import is_timed
from escala.report.tables.speedup import DECIMALS

MATCHES = (6, 7, 9, 12, 15, 20)
NOISE = (0.02, 0.05, 0.1)
#: A machine with two speeds: half of the runs, by chance, take so much longer; and its noise.
TWO_SPEEDS, STEADY = 0.3, 0.01
DISTURBED = (0.0, 0.05, 0.1, 0.2)
LONGER = (0.15, 0.9)
LOOKED_AT = (1.0, 1.05, 1.1, 0.9, 0.8, 0.65)
RATIOS = (0.97, 0.9, 0.8, 0.65, 0.5, 1.2)
COMPARED = (2, 3, 5, 10)
#: Of the logarithms of successive ratios.
CORRELATIONS = (0.0, 0.5)
#: Between sessions, of `next` and `best`.
APART = 0.05
BETWEEN = (0.0, 0.05, 0.1)
SESSIONS = (3, 5, 10)
#: How much longer a run takes that other work hits: of one process beside a free core, and of two.
HIT = ((0.0, 0.2), LONGER)
#: Fractions of matches that are hit, and of hit runs that are found.
HITS, FOUND = (0.0, 0.1, 0.3, 0.6), (0.97, 0.8, 0.5)
#: Of an undisturbed run that it is called disturbed.
FALSE_ALARM = 0.01
#: Of `sessions`, `best` and `disturbed`.
USUAL_NOISE = 0.05


class Ends(NamedTuple):
    """Estimates and ends of intervals of logarithms, arrays of shape (draws,)."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


def order_statistics(logs: np.ndarray, level: float = LEVEL) -> Ends:
    """Return the median and two ordered values of each row, as `median_interval` does."""
    number = logs.shape[-1]
    outside = max(int(stats.binom.ppf((1 - level) / 2, number, 0.5)) - 1, 0)
    ordered = np.sort(logs, axis=-1)
    return Ends(np.median(logs, axis=-1), ordered[..., outside], ordered[..., -1 - outside])


def by_signed_ranks(logs: np.ndarray, level: float = LEVEL) -> Ends:
    return Ends(*rank_interval(logs, level))


def student(logs: np.ndarray, level: float = LEVEL) -> Ends:
    """Return the mean of each row and Student's interval."""
    mean, number = logs.mean(axis=-1), logs.shape[-1]
    error = logs.std(axis=-1, ddof=1) / np.sqrt(number)
    half = stats.t.ppf((1 + level) / 2, number - 1) * error
    return Ends(mean, mean - half, mean + half)


METHODS = {"order": order_statistics, "signed": by_signed_ranks, "student": student}


def times(
    random: np.random.Generator, shape: Sequence[int], noise: float | str, disturbed: float
) -> np.ndarray:
    """Return logarithms of the times of equal runs.

    Parameters
    ----------
    noise : standard deviation of the logarithm, or the name of the machine with two speeds, or
        `t3`, whose logarithms have Student's distribution of three degrees of freedom.
    disturbed : fraction of the runs that take longer.
    """
    if noise == "t3":
        return random.standard_t(3, shape) * USUAL_NOISE / np.sqrt(3)
    if isinstance(noise, str):
        steady = times(random, shape, STEADY, disturbed)
        return steady + TWO_SPEEDS * (random.random(shape) < 0.5)
    longer = np.log1p(random.uniform(*LONGER, shape))
    return random.normal(0, noise, shape) + longer * (random.random(shape) < disturbed)


def shifted(found: Ends, ratio: float | np.ndarray) -> Ends:
    return Ends(*(each + np.log(ratio) for each in found))


def faster(found: Ends) -> np.ndarray:
    """Return whether each interval, as it is printed, lies below 1."""
    return np.round(np.exp(found.high), DECIMALS) < 1


def slower(found: Ends) -> np.ndarray:
    return np.round(np.exp(found.low), DECIMALS) > 1


def decided(found: Ends) -> np.ndarray:
    return faster(found) | slower(found)


def faster_at(found: Ends) -> dict[str, float]:
    """Return the fraction of verdicts `faster` at some true ratios, by the ratio."""
    return {f"{ratio:g}": faster(shifted(found, ratio)).mean() for ratio in (0.9, 0.8, 0.65)}


def methods(random: np.random.Generator, draws: int) -> Iterator[dict]:
    """Yield a row for each fraction of disturbed runs, noise, number of matches and method."""
    for disturbed, noise, matches in product(DISTURBED, (*NOISE, "two"), MATCHES):
        mine, reference, duplicate = (
            times(random, (draws, matches), noise, disturbed) for _ in range(3)
        )
        for name, method in METHODS.items():
            equal, itself = method(mine - reference), method(duplicate - reference)
            floor = np.abs(itself.estimate)
            far = np.maximum(np.abs(itself.low), np.abs(itself.high))
            yield {
                "disturbed": disturbed, "noise": noise, "matches": matches, "method": name,
                "faster": faster(equal).mean(), "slower": slower(equal).mean(),
                "floor": (decided(equal) & (np.abs(equal.estimate) > floor)).mean(),
                "coverage": ((equal.low <= 0) & (equal.high >= 0)).mean(),
                "width": float(np.expm1(np.median(equal.high - equal.low))),
                **_power(equal, floor, far),
            }  # fmt: skip


def _power(equal: Ends, floor: np.ndarray, far: np.ndarray) -> dict[str, float]:
    """Return the fraction of verdicts at each true ratio, which shifts all three."""
    found = {}
    for ratio in RATIOS:
        moved = shifted(equal, ratio)
        right = faster(moved) if ratio < 1 else slower(moved)
        found[f"{ratio:g}"] = right.mean()
        if ratio == 0.65:
            size = np.abs(moved.estimate)
            found["0.65 floor"] = (right & (size > floor)).mean()
            found["0.65 far"] = (right & (size > far)).mean()
    return found


def widened(found: Ends, level: float = LEVEL) -> Ends:
    """Return intervals with arms as `escala.analysis.statistics.next_time_interval` has them."""
    deviation, degrees = deviation_of_sessions([])
    arm = stats.t.ppf((1 + level) / 2, degrees) * deviation
    low, high = (np.hypot(end - found.estimate, arm) for end in (found.low, found.high))
    return Ends(found.estimate, found.estimate - low, found.estimate + high)


def next_time(random: np.random.Generator, draws: int) -> Iterator[dict]:
    """Yield a row for each correlation, noise and number of matches."""
    for correlation, noise, matches in product(CORRELATIONS, NOISE, MATCHES):
        sides = [times(random, (draws, matches), noise, 0.1) for _ in range(2)]
        logs = sides[1] - sides[0]
        for place in range(1, matches):
            fresh = np.sqrt(1 - correlation**2) * logs[:, place]
            logs[:, place] = correlation * logs[:, place - 1] + fresh
        own = by_signed_ranks(logs)
        found = widened(shifted(own, np.exp(random.normal(0, APART, draws))))
        yield {
            "correlation": correlation, "noise": noise, "matches": matches,
            "false, one session": decided(own).mean(), "false": decided(found).mean(),
            "coverage": ((found.low <= 0) & (found.high >= 0)).mean(), **faster_at(found),
        }  # fmt: skip


def looks(random: np.random.Generator, draws: int) -> Iterator[dict]:
    """Yield a row for each noise, question and true ratio."""
    arm = session_half_width(*deviation_of_sessions([]), LOOK_LEVEL)
    for noise, share in ((USUAL_NOISE, 0.0), ("t3", 0.0), (USUAL_NOISE, 0.1), ("two", 0.0)):
        shape = draws, LOOKS[-1]
        equal = times(random, shape, noise, share) - times(random, shape, noise, share)
        apart = random.normal(0, APART, (draws, 1))
        for of, ratio in product(("session", "5 %", "next time"), LOOKED_AT):
            is_next, allowed = of == "next time", 0.05 if of == "5 %" else 0.0
            logs = equal + np.log(ratio / (1 + allowed)) + apart * is_next
            used, kind = np.full(draws, LOOKS[-1]), np.full(draws, "open", object)
            for number in LOOKS:
                own = by_signed_ranks(logs[:, :number], LOOK_LEVEL)
                judged = widened(own, LOOK_LEVEL) if is_next else own
                below, above = faster(judged), slower(judged)
                if not is_next:  # In a session alone, ends are not rounded.
                    below, above = own.high < 0, own.low > 0
                ended = np.where(below, "faster", np.where(above, "slower", None))
                ends = () if allowed else zip(*np.exp(own), strict=True)
                futile = [futility(Interval(*each), "as much", arm * is_next) for each in ends]
                ended = np.where(ended == None, futile or None, ended)  # noqa: E711
                now = (kind == "open") & (ended != None)  # noqa: E711
                kind[now], used[now] = ended[now], number
            fixed = by_signed_ranks(logs[:, :20])
            fixed = widened(fixed) if is_next else fixed
            yield {
                "noise": noise, "disturbed": share, "of": of, "ratio": ratio,
                "faster": (kind == "faster").mean(),
                "slower": (kind == "slower").mean(), "open": (kind == "open").mean(),
                "matches": used.mean(), "faster with 20": faster(fixed).mean(),
                "slower with 20": slower(fixed).mean(),
            }  # fmt: skip


def best(random: np.random.Generator, draws: int) -> Iterator[dict]:
    """Yield a row for each noise and number of configurations, one run in ten disturbed."""
    for noise, compared in product((0.02, 0.05), COMPARED):
        level = simultaneous_level(compared - 1)
        matches = 7
        logs = times(random, (draws, compared, matches), noise, 0.1)
        # So that the ratio of two differs by `APART` from session to session.
        logs += random.normal(0, APART / np.sqrt(2), (draws, compared, 1))
        quickest = np.median(logs, axis=-1).argmin(axis=1)
        chosen = np.take_along_axis(logs, quickest[:, None, None], axis=1)
        quicker = faster(widened(by_signed_ranks(chosen - logs, level), level))
        others = np.arange(compared) != quickest[:, None]
        yield {
            "noise": noise, "best of": compared, "matches": matches,
            "pays": (quicker | ~others).all(axis=1).mean(),
            "than a given one": quicker[others].mean(),
            "than any": (quicker & others).any(axis=1).mean(),
        }  # fmt: skip


def sessions(random: np.random.Generator, draws: int) -> Iterator[dict]:
    """Yield a row for each deviation between sessions, number of sessions and method."""
    matches = 7
    for between, number in product(BETWEEN, SESSIONS):
        shape = (draws, number, matches)
        logs = times(random, shape, USUAL_NOISE, 0.1) - times(random, shape, USUAL_NOISE, 0.1)
        logs += random.normal(0, between, (draws, number, 1))
        estimates, variances = rank_interval(logs)[0], logs.var(axis=-1, ddof=1) / matches
        ways = {
            "Student": student(estimates),
            "Hartung-Knapp": hartung_knapp(estimates, variances),
            "all matches": by_signed_ranks(logs.reshape(draws, -1)),
        }
        for name, found in ways.items():
            yield {
                "between": between, "sessions": number, "method": name,
                "faster": faster(found).mean(), "slower": slower(found).mean(),
                "coverage": ((found.low <= 0) & (found.high >= 0)).mean(),
                "width": float(np.expm1(np.median(found.high - found.low))),
                **faster_at(found),
            }  # fmt: skip


def disturbed(random: np.random.Generator, draws: int) -> Iterator[dict]:
    """Yield a row for each number of matches, fraction hit and fraction found."""
    for matches, hits, found in product((7, 10, 20), HITS, FOUND):
        shape = (draws, matches)
        hit = random.random(shape) < hits
        sides = [
            times(random, shape, USUAL_NOISE, 0.0) + hit * np.log1p(random.uniform(*longer, shape))
            for longer in HIT
        ]
        alarms = random.random((2, *shape)) < np.where(hit, found, FALSE_ALARM)
        quiet = ~alarms.any(axis=0)
        logs = sides[1] - sides[0]
        row = {"matches": matches, "hit": hits, "found": found}
        for name, kept, most in (
            ("kept", np.ones(shape, bool), 1), ("left out", quiet, 1), ("half", quiet, 1 / 2),
            ("third", quiet, 1 / 3), ("fifth", quiet, 1 / 5),
        ):  # fmt: skip
            judged = (~quiet).mean(axis=1) <= most
            wrong, right = np.zeros(draws, bool), np.zeros(draws, bool)
            for number in range(MATCHES_FOR_INTERVAL, matches + 1):
                those = judged & (kept.sum(axis=1) == number)
                if those.any():
                    of = logs[those][kept[those]].reshape(-1, number)
                    wrong[those] = decided(by_signed_ranks(of))
                    right[those] = faster(by_signed_ranks(of + np.log(0.65)))
            row |= {f"false, {name}": wrong.mean(), f"0.65, {name}": right.mean()}
        yield row


def hartung_knapp(estimates: np.ndarray, variances: np.ndarray) -> Ends:
    """Return the mean over sessions by random effects, with the variance of DerSimonian and Laird.

    Parameters
    ----------
    estimates, variances : of each session, arrays of shape (draws, sessions).
    """
    degrees = estimates.shape[-1] - 1
    fixed = 1 / variances
    total = fixed.sum(axis=-1)
    mean = (fixed * estimates).sum(axis=-1) / total
    heterogeneity = (fixed * (estimates - mean[:, None]) ** 2).sum(axis=-1)
    scale = total - (fixed**2).sum(axis=-1) / total
    between = np.maximum(heterogeneity - degrees, 0) / scale
    weights = 1 / (variances + between[:, None])
    total = weights.sum(axis=-1)
    mean = (weights * estimates).sum(axis=-1) / total
    square = (weights * (estimates - mean[:, None]) ** 2).sum(axis=-1) / degrees / total
    half = stats.t.ppf((1 + LEVEL) / 2, degrees) * np.sqrt(square)
    return Ends(mean, mean - half, mean + half)


Runs = Sequence[Mapping[str, Any]]


def timed(folders: Iterable[Path]) -> dict[str, list[dict]]:
    """Return the timing runs of each session that ended ok, each once, and belong to no ladder."""
    found: dict[str, dict[tuple, dict]] = defaultdict(dict)
    for folder in folders:
        for path in run_files(folder):
            run = read_run(path) | {"comparable": True}
            run |= {"current": True, "incomparable_because": None}
            usable = is_timed(run) and run["training"]["steps_per_epoch"]
            if usable and run["instrument"] is None and run["series"] in (None, DUPLICATE):
                seconds = runs.row(run)["train_seconds_per_epoch"]
                name = (*(run[key] for key in (*CONFIGURATION, "series", "repeat")), folder)
                found[run["session"]].setdefault(name, run | {"seconds": seconds})
    return {session: list(of.values()) for session, of in sorted(found.items())}


def equal_ratios(found: Runs) -> Iterator[tuple[str, list[float]]]:
    """Yield the name and the ratios of the matches of each two equal configurations of a session.

    These are duplicates of references, and configurations whose knobs and settings are equal.
    """
    groups: dict[tuple, list] = defaultdict(list)
    for run in found:
        groups[(*(run[key] for key in CONFIGURATION), run["series"])].append(run)
    for one, other in combinations(groups, 2):
        mine, theirs = groups[other], groups[one]
        if _equal(mine[0], theirs[0]):
            matches = match_runs(mine, theirs)
            both = zip(matches.runs, matches.references, strict=True)
            name = " and ".join(" ".join(filter(None, each[2:])) for each in (one, other))
            yield name, [run["seconds"] / reference["seconds"] for run, reference in both]


def _equal(one: Mapping, other: Mapping) -> bool:
    """Return whether two runs do the same, whatever their variants are called."""
    same = all(one[key] == other[key] for key in (*CONFIGURATION[:4], "network", "knobs"))
    return same and one["training"].get("settings") == other["training"].get("settings")


def real(found: Mapping[str, Runs]) -> Iterator[dict]:
    """Yield a row for each comparison of equal configurations in a session, and each method."""
    for session, measured in found.items():
        for name, ratios in equal_ratios(measured):
            if len(ratios) < MATCHES_FOR_INTERVAL:
                continue
            logs = np.log([ratios])
            for method, of in METHODS.items():
                ends = of(logs)
                yield {
                    "session": session, "what": name, "matches": len(ratios), "method": method,
                    **{key: float(np.exp(each[0])) for key, each in ends._asdict().items()},
                    "false": decided(ends).mean(), **faster_at(ends),
                }  # fmt: skip


def worst(rows: Sequence[Mapping]) -> Iterator[str]:
    """Yield what the table of methods is asked for."""
    for name in METHODS:
        own = [row for row in rows if row["method"] == name]
        false = max(row["faster"] + row["slower"] for row in own)
        asked = [row for row in own if row["matches"] == 7 and row["disturbed"] == 0.1]
        seen = ", ".join(f"{100 * row['0.65']:.0f} % (noise {row['noise']})" for row in asked)
        yield (
            f"{name}: at most {100 * false:.1f} % false; seven matches, one run in ten disturbed, "
            f"ratio 0.65: verdicts in {seen}"
        )


def shown(rows: Sequence[Mapping]) -> Iterator[str]:
    """Yield the lines of a table; fractions are in per cent, counts and measures as they are."""
    plain = {"matches", "ratio", "sessions", "best of", "needs", "estimate", "low", "high"}

    def cell(key: str, value: float | str) -> str:
        if isinstance(value, str):
            return value
        return f"{value:.3g}" if key in plain else f"{100 * value:.1f}"

    headings = list(rows[0])
    cells = [[cell(key, row[key]) for key in headings] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for line in [headings, *cells]:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    simulated = {
        "methods": methods, "next": next_time, "looks": looks, "best": best, "sessions": sessions,
        "disturbed": disturbed,
    }  # fmt: skip
    parts = [*simulated, "real"]
    parser.add_argument("part", nargs="?", choices=parts, help="default: all but the last")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="of `real`")
    parser.add_argument("--draws", type=int, default=3000, help="sessions (default: 3000)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.part == "real":
        rows = list(real(timed(arguments.folders)))
        if not rows:
            parser.error("no session has two equal configurations with six matches")
        print(*shown(rows), sep="\n")
        for name in METHODS:
            false = [row["false"] for row in rows if row["method"] == name]
            print(f"{name}: {sum(false):.0f} of {len(false)} verdicts false")
        return
    random = np.random.default_rng(arguments.seed)
    for name, part in simulated.items():
        if arguments.part in (None, name):
            rows = list(part(random, arguments.draws))
            print(name, *shown(rows), sep="\n")
            print(*(worst(rows) if part is methods else ()), "", sep="\n")


if __name__ == "__main__":
    main()
