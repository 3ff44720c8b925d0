"""Compare advice with what was measured, scenario by scenario.

    python -m benchmarks.advice benchmarks/advice.yaml --results results

A scenario has an experiment that was measured, a goal and limits. The advice sees no run of the
experiment. `calibrated_by` names the experiment whose calibration is used; the default is the same
experiment.

Prints two tables. The first has a row for each scenario: what is advised, what was measured to be
best, and the measured amount of the advised configuration divided by that of the best one, in
matches of one session. The second has the predicted and the measured amount of each configuration.

| verdict | meaning |
|---|---|
| right | the advised configuration is the best that was measured |
| as good | the interval of the ratio includes 1, and rests on six matches at least |
| wrong | another configuration needs less, or the advised one exceeds a limit |
| not compared | nothing is advised, or the advised configuration was not measured |
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.advice_scenarios import Scenario, scenario_plans, scenarios
from escala import cli
from escala.analysis.advice import CALIBRATION, Question, advise_from
from escala.analysis.advice.candidates import configuration_of
from escala.analysis.advice.choice import GOALS, TIME
from escala.analysis.advice.text import content
from escala.analysis.cost_model.calibration import LEVEL, read
from escala.analysis.measurements import read_run
from escala.analysis.statistics import LEVEL as MEASURED
from escala.analysis.statistics import Interval, median_interval, ratio_interval
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.core.readable import with_noun
from escala.experiment import load
from escala.experiment.runs import Configuration
from escala.runtime.layout import Layout

RIGHT, AS_GOOD, WRONG, NOT_COMPARED = "right", "as good", "wrong", "not compared"
#: Fewer matches have no interval of level 95 %, and so no verdict "as good".
LEAST_PAIRS = 6


@dataclass(frozen=True)
class Measured:
    """The runs of a configuration in one session.

    Attributes
    ----------
    amounts : of the goal, by repeat.
    excluded : the limits that it exceeds; None if it can be selected.
    """

    configuration: Configuration
    amounts: Mapping[int, float]
    excluded: str | None

    @property
    def interval(self) -> Interval:
        return median_interval(list(self.amounts.values()))


@dataclass(frozen=True)
class Outcome:
    """An advice alongside what was measured.

    Attributes
    ----------
    answer : the advice, as in advice.json.
    measured : of each configuration with the rows of the advice, the best first.
    ratio : of the amount of the advised configuration to that of the best one.
    """

    scenario: Scenario
    answer: Mapping
    advised: Configuration | None
    measured: tuple[Measured, ...]
    ratio: Interval | None
    matches: int
    verdict: str

    @property
    def best(self) -> Measured | None:
        return next((each for each in self.measured if each.excluded is None), None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", type=Path, help="a YAML file with a list of scenarios")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="default: %(default)s"
    )
    parser.add_argument("--draws", type=int, default=200, help="default: %(default)s")
    arguments = parser.parse_args()
    outcomes = []
    for each in scenarios(arguments.scenarios):
        try:
            outcomes.append(outcome(each, arguments.results, arguments.draws))
        except (InputError, FileNotFoundError) as error:
            print(f"Not judged: {each.question}: {error}")
    print(f"Predictions have {LEVEL:.0%} intervals, measured amounts and ratios {MEASURED:.0%}.")
    _print_table(_HEADER, map(_cells, outcomes))
    _print_table(_OPTIONS, (row for each in outcomes for row in _options(each)))


def outcome(scenario: Scenario, results: Path, draws: int) -> Outcome:
    """Ask for advice, and compare it with what was measured.

    Raises
    ------
    InputError : there is no calibration, no run, or the advice cannot be asked for.
    """
    base = load(scenario.experiment)
    found = scenario_plans(base, scenario, results)
    file = results / Path(scenario.calibrated_by or scenario.experiment).stem / CALIBRATION
    calibration = read(file)
    if scenario.cores_per_node:
        calibration = replace(calibration, cores_per_node=scenario.cores_per_node)
    advice = advise_from(
        calibration,
        read_json(file)["machine"],
        found,
        Question(scenario.goal, scenario.limits),
        draws=draws,
    )
    [answer] = content(advice)["answers"]
    runs = _runs(results / base.name, found["configurations"], answer["rows"])
    amounts = measured(runs, scenario)
    return judged(scenario, answer, amounts)


def _runs(folder: Path, planned: Iterable[Mapping], rows: int | None) -> list[dict]:
    """Return the timing runs of some configurations that ended ok, of one session.

    The session is the one with most of them.

    Parameters
    ----------
    rows : of a step of all ranks together; None for any.

    Raises
    ------
    InputError : there are none.
    """
    names = ("dataset", "workload", *Configuration._fields)
    found = [
        read_run(file)
        for each in planned
        for file in sorted(
            folder.joinpath("runs", *(each[name] for name in names)).glob("rep*/run.json")
        )
    ]
    ok = [
        run
        for run in found
        if run["status"] == "ok" and rows in (None, run["training"]["global_batch"])
    ]
    if not ok:
        raise InputError(folder, "runs", "none of them ended ok", "measure the experiment")
    [(session, _)] = Counter(run["session"] for run in ok).most_common(1)
    return [run for run in ok if run["session"] == session]


def measured(runs: Iterable[Mapping], scenario: Scenario) -> list[Measured]:
    """Return the measured amounts of each configuration, those within the limits and best first."""
    grouped: dict[Configuration, list[Mapping]] = {}
    for run in runs:
        names = Configuration(*(run[name] for name in Configuration._fields))
        grouped.setdefault(names, []).append(run)
    found = [_measured(names, of, scenario) for names, of in grouped.items()]
    return sorted(
        found,
        key=lambda each: (each.excluded is not None, statistics.median(each.amounts.values())),
    )


def _measured(names: Configuration, runs: Sequence[Mapping], scenario: Scenario) -> Measured:
    cores = Layout.parse(names.layout).ranks * runs[0]["knobs"]["cores_per_process"]
    amounts = {run["repeat"]: _amount(scenario.goal, run, cores) for run in runs}
    longest = max(run["wall_seconds"] for run in runs)
    exceeded = list(_exceeded(scenario, cores, longest))
    return Measured(names, amounts, "; ".join(exceeded) or None)


def _amount(goal: str, run: Mapping, cores: int) -> float:
    if goal == TIME:
        return sum(epoch["train_seconds"] for epoch in run["epochs"])
    return run["wall_seconds"] * cores / 3600


def _exceeded(scenario: Scenario, cores: int, longest: float) -> Iterator[str]:
    """Yield the limits that a configuration exceeds."""
    limits = scenario.limits
    if limits.cores is not None and cores > limits.cores:
        yield with_noun(limits.cores, "core")
    if limits.seconds is not None and longest > limits.seconds:
        yield f"{scenario.minutes:g} minutes"


def judged(scenario: Scenario, answer: Mapping, found: Sequence[Measured]) -> Outcome:
    """Judge an advice by the measured amounts.

    Parameters
    ----------
    found : as `measured` returns them.
    """
    names = answer["selected"]
    advised = names and Configuration(*(names[name] for name in Configuration._fields))
    own = next((each for each in found if each.configuration == advised), None)
    best = next((each for each in found if each.excluded is None), None)
    if own is None or best is None:
        # To advise nothing is right where nothing is within the limits.
        right = advised is None and not answer["unavailable"] and best is None
        verdict = RIGHT if right else NOT_COMPARED if own is None else WRONG
        return Outcome(scenario, answer, advised, tuple(found), None, 0, verdict)
    both = sorted(own.amounts.keys() & best.amounts.keys())
    ratio = ratio_interval([own.amounts[each] / best.amounts[each] for each in both])
    same = len(both) >= LEAST_PAIRS and ratio.low <= 1
    not_best = AS_GOOD if same and own.excluded is None else WRONG
    verdict = RIGHT if own is best else not_best
    return Outcome(scenario, answer, advised, tuple(found), ratio, len(both), verdict)


_HEADER = (
    "scenario",
    "advised",
    "predicted",
    "measured",
    "best measured",
    "its amount",
    "advised / best",
    "matches",
    "verdict",
)
_OPTIONS = ("scenario", "configuration", "predicted", "measured", "runs", "note")


def _cells(found: Outcome) -> tuple:
    unit, best = GOALS[found.scenario.goal], found.best
    own = next((each for each in found.measured if each.configuration == found.advised), None)
    option = next(
        (each for each in found.answer["options"] if configuration_of(each) == found.advised), None
    )
    words = found.answer["unavailable"] or "nothing is within the limits"
    if found.advised:
        words = f"`{found.advised}`"
        words = words if found.answer["distribute"] else f"do not distribute: {words}"
    return (
        found.scenario.question,
        words,
        _shown(option and Interval(**option["amount"]), unit),
        _shown(own and own.interval, unit),
        f"`{best.configuration}`" if best else "–",
        _shown(best and best.interval, unit),
        _shown(found.ratio),
        found.matches or "–",
        found.verdict,
    )


def _options(found: Outcome) -> Iterator[tuple]:
    """Yield a row for each configuration that was predicted or measured."""
    unit = GOALS[found.scenario.goal]
    by_name = {each.configuration: each for each in found.measured}
    refused = {configuration_of(each): each["reason"] for each in found.answer["unpredicted"]}
    predicted = {configuration_of(each): each for each in found.answer["options"]}
    for names in dict.fromkeys([*by_name, *predicted]):
        option, own = predicted.get(names), by_name.get(names)
        amount = option and option["amount"]
        notes = [
            option and option["excluded"] and f"excluded: {option['excluded']}",
            "; ".join(option["extrapolated"]) if option else None,
            names in refused and f"not predicted: {refused[names]}",
            own and own.excluded and f"measured: exceeds {own.excluded}",
        ]
        yield (
            found.scenario.question,
            f"`{names}`",
            _shown(amount and Interval(**amount), unit),
            _shown(own and own.interval, unit),
            len(own.amounts) if own else 0,
            "; ".join(each for each in notes if each),
        )


def _shown(found: Interval | None, unit: str = "") -> str:
    if found is None:
        return "–"
    estimate, low, high = (None if each is None else _number(each) for each in found)
    return (
        f"{estimate} {unit}".strip() if low is None else f"{estimate} ({low}–{high}) {unit}".strip()
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _print_table(header: Sequence[str], rows: Iterable[Sequence]) -> None:
    print(f"\n| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
