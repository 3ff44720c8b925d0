"""Write an advice in words: the answer, and the lines of a job script.

All functions read the content of advice.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from escala.analysis import laws
from escala.analysis.advice import changes
from escala.analysis.advice.candidates import BOUNDS, names_of
from escala.analysis.advice.choice import CORE_HOURS, DEADLINE, ENERGY, GOALS, TIME
from escala.core.readable import counted, size
from escala.experiment.references import NATIVE
from escala.record.estimate import span
from escala.strategies.knobs import reads

#: Fractions that a job script adds to the upper end of the predicted time, and to the measured
#: memory.
TIME_MARGIN, MEMORY_MARGIN = 0.25, 0.2
#: How many configurations are named if none is within the limits.
_MOST_NAMED = 3
_AMOUNTS = {
    TIME: "training time",
    CORE_HOURS: "core-hours",
    ENERGY: "energy",
    DEADLINE: "core-hours",
}


def label(names: Mapping[str, str]) -> str:
    """Return the name of a configuration."""
    return str(names_of(names))


def option_of(answer: Mapping, names: Mapping[str, str]) -> dict:
    """Return the option of a configuration."""
    return next(each for each in answer["options"] if names_of(each) == names_of(names))


def _interval(found: Mapping, show: Callable[[float], str] = "{:.2f}".format) -> str:
    """Return an estimate with its interval, such as `0.52 (0.49–0.56)`."""
    return f"{show(found['estimate'])} ({show(found['low'])}–{show(found['high'])})"


def _ranks(option: Mapping) -> int:
    return option["nodes"] * option["processes"]


def headline(answer: Mapping, advice: Mapping) -> str:
    """Return the answer in one or two sentences."""
    if answer["unavailable"]:
        return f"Unavailable: {answer['unavailable']}."
    if answer["selected"] is None:
        return f"No configuration is within the limits: {_excluded(answer['options'])}."
    base, best = (option_of(answer, answer[name]) for name in ("baseline", "selected"))
    what = _AMOUNTS[advice["goal"]]
    if not answer["distribute"]:
        return f"Do not distribute this: use {label(base)}. {_why_not(answer, what)}"
    if base["excluded"]:
        return f"Use {label(best)}. {label(base)} {base['excluded']}."
    ratio, measured = best["ratio"], best["measured_ratio"]
    basis = f"; measured, {_basis(measured)}" if measured else ""
    return (
        f"Use {label(best)}: {ratio['estimate']:.2f} of the {what} of {label(base)} "
        f"({ratio['low']:.2f}–{ratio['high']:.2f}{basis})."
    )


def _basis(measured: Mapping) -> str:
    """Return how many matches and sessions a measured ratio is based on, in words."""
    sessions, best_of = measured["sessions"], measured["best_of"]
    sessions_clause = f" of {counted(sessions, 'session')}" if sessions else ""
    best_clause = f", best of {best_of}" if best_of > 1 else ""
    return f"{counted(measured['matches'], 'match', 'matches')}{sessions_clause}{best_clause}"


def _excluded(options: Sequence[Mapping]) -> str:
    """Return why the shortest jobs cannot be selected, and how many others there are."""
    shortest = sorted(options, key=lambda each: each["job_seconds"]["estimate"])
    named = "; ".join(f"{label(each)} {each['excluded']}" for each in shortest[:_MOST_NAMED])
    others = len(shortest[_MOST_NAMED:])
    return f"{named}; and {counted(others, 'other')}" if others else named


def _why_not(answer: Mapping, what: str) -> str:
    if answer["nearest"] is None:
        several = [each for each in answer["options"] if _ranks(each) > 1]
        if not several:
            return "No configuration of several ranks is predicted."
        return f"No configuration of several ranks is within the limits: {_excluded(several)}."
    nearest = option_of(answer, answer["nearest"])
    ratio = nearest["ratio"]
    if nearest["basis"] == BOUNDS:
        may = "may pay or not: measure it" if ratio["low"] < 1 else "does not pay"
        return (
            "Nothing shows that several ranks pay. With bounds of "
            f"{ratio['low']:.2f} and {ratio['high']:.2f} of the {what}, {label(nearest)} {may}."
        )
    return (
        f"No configuration of several ranks pays. The nearest is {label(nearest)}, "
        f"with {_interval(ratio)} of the {what} ({nearest['basis']})."
    )


def _title(answer: Mapping) -> str:
    network = "" if answer["network"] == NATIVE else f", {answer['network']}"
    return f"{answer['workload']} on {answer['dataset']}{network}"


def lines(advice: Mapping) -> Iterator[str]:
    """Yield an advice as readable text."""
    for answer in advice["answers"]:
        yield _title(answer)
        for each in (answer["answer"], *_sentences(answer, advice), *answer["job_script"]):
            yield f"  {each}"
        yield ""


def markdown(advice: Mapping) -> Iterator[str]:
    """Yield an advice as Markdown."""
    limits = advice["limits"]
    shown = {
        "nodes": lambda value: counted(value, "node"),
        "cores": lambda value: counted(value, "core"),
        "memory_bytes": lambda value: f"{size(value)} of memory on a node",
        "seconds": span,
    }
    found = [show(limits[name]) for name, show in shown.items() if limits[name] is not None]
    within = f"Limits: {', '.join(found)}." if found else "No limits."
    yield f"# Advice for {advice['experiment']}"
    yield f"\nGoal: {advice['goal']}. {within}"
    for answer in advice["answers"]:
        yield f"\n## {_title(answer)}"
        yield f"\n**{answer['answer']}**"
        yield from (f"\n{each}" for each in _sentences(answer, advice))
        if answer["options"]:
            yield ""
            yield from _table(answer, advice)
        if answer["job_script"]:
            yield from ("\n```", *answer["job_script"], "```")


def _sentences(answer: Mapping, advice: Mapping) -> Iterator[str]:
    """Yield the sentences below an answer."""
    if answer["selected"]:
        yield from _about(option_of(answer, answer["selected"]), answer, advice)
    if answer["passed_over"]:
        other = option_of(answer, answer["passed_over"])
        yield (
            f"{label(other)} is predicted with less, {_interval(other['ratio'])}, but extrapolated "
            "and not measured. A measured configuration that pays comes first."
        )
    for each in answer["options"]:
        if each["contradiction"]:
            measured = each["measured_ratio"]
            yield (
                f"Measured and predicted times of {label(each)} contradict each other: measured "
                f"{_interval(measured)} of the time of {measured['reference']} "
                f"({measured['verdict']}, {_basis(measured)}), predicted "
                f"{_interval(each['predicted_ratio'])}. The measured one counts."
            )
    if answer["changes"]:
        yield (
            f"No configuration of several ranks saves {changes.SAVING:.0%} of the training time of "
            "one rank. What would have to change for that:"
        )
        yield from map(_change, answer["changes"])
    for each in answer["unpredicted"]:
        yield f"{label(each)} is not predicted: {each['reason']}."


def _about(best: Mapping, answer: Mapping, advice: Mapping) -> Iterator[str]:
    """Yield sentences on the selected option."""
    yield (
        f"Training takes {_interval(best['seconds'], span)}, and the whole job "
        f"{_interval(best['job_seconds'], span)}."
    )
    if best["extrapolated_start"]:
        yield f"In the time of the whole job, {'; '.join(best['extrapolated_start'])}."
    if best["configured_rows"] != answer["rows"]:
        yield (
            f"All ranks together have {answer['rows']} rows in a step, as one process has: set "
            f"`batch: {{rows: {answer['rows']}, per: global}}`. The experiment has "
            f"{best['configured_rows']} rows, and so makes other updates."
        )
    yield from _efficiency(best, option_of(answer, answer["baseline"]), advice["rules"])
    goal, source = advice["goal"], answer["energy_source"]
    if goal != TIME:
        what, by = "energy" if goal == ENERGY else "cost", f", by the {source}" if source else ""
        yield f"Its {what} is {_interval(best['amount'], '{:.3g}'.format)} {GOALS[goal]}{by}."
    if goal == DEADLINE:
        yield "The deadline counts from the start of the job: no wait in a queue is known."
    if best["extrapolated"]:
        yield f"Extrapolated, and not covered by the intervals: {'; '.join(best['extrapolated'])}."


def _efficiency(best: Mapping, base: Mapping, rule: Mapping | None) -> Iterator[str]:
    """Yield sentences on the efficiency of the selected option, and on the rule of the study."""
    times = _cores(best) / _cores(base)
    if times <= 1:
        return
    yield (
        f"Its efficiency is {_interval(best['efficiency'])}, with {times:g} times the cores of "
        f"{label(base)} ({best['basis']})."
    )
    each = laws.efficiency_of_doubling(best["speedup"]["estimate"], times)
    if rule and each is not None:
        needed = rule["efficiency_of_doubling"]
        yield (
            f"Each doubling of the cores has an efficiency of {each:.2f}, which "
            f"{'reaches' if each >= needed else 'does not reach'} the {needed:g} of the rule of "
            f"{rule['name']}."
        )


def _cores(option: Mapping) -> int:
    return _ranks(option) * option["cores_per_process"]


def _change(each: Mapping) -> str:
    """Return a sentence on one change."""
    name, saved, value = label(each), f"{changes.SAVING:.0%}", each["value"]
    note = " (extrapolated)" if each["extrapolated"] else ""
    kind, found = each["change"], value is not None
    if kind == changes.BANDWIDTH:
        if found:
            return f"Bandwidth: {name} saves {saved} from {value / 1e9:.3g} Gbit/s{note}."
        return f"Bandwidth: no link is fast enough for {name} to save {saved}{note}."
    if kind == changes.BATCH:
        if found:
            return (
                f"Batch: {name} saves {saved} from {value:.0f} rows in a step{note}. One rank has "
                "these rows too, so the updates are fewer, and scores may differ."
            )
        return f"Batch: no number of rows that was tried lets {name} save {saved}{note}."
    if kind == changes.CORES:
        if found:
            return f"Cores: {name} saves {saved} on nodes of {value:.0f} cores{note}."
        return f"Cores: more cores of a node do not let {name} save {saved}{note}."
    knob = "communication_hook" if reads(each["strategy"], "communication_hook") else "compression"
    how = f"`{knob}: fp16`" if kind == changes.COMPRESSION else "`dense_exchange: factors`"
    does = f"saves {saved}" if each["saves"] else f"does not save {saved}"
    ratio = f"{each['ratio']:.2f} of the training time of one rank"
    return f"Compression: with {how}, {name} {does}: {ratio}{note}."


def _table(answer: Mapping, advice: Mapping) -> Iterator[str]:
    goal = advice["goal"]
    yield f"| configuration | {_AMOUNTS[goal]}, {GOALS[goal]} | ratio | rests on |"
    yield "| --- | --- | --- | --- |"
    for each in answer["options"]:
        amount, ratio = (_interval(each["amount"], "{:.3g}".format), _interval(each["ratio"]))
        note = f"; excluded: {each['excluded']}" if each["excluded"] else ""
        yield f"| {label(each)} | {amount} | {ratio} | {each['basis']}{note} |"


def job_script(answer: Mapping, advice: Mapping) -> Iterator[str]:
    """Yield the lines of a job script that ask SLURM for what the choice needs, and why."""
    if answer["selected"] is None:
        return
    best = option_of(answer, answer["selected"])
    memory, processes = best["memory"], best["processes"]
    margin = MEMORY_MARGIN if memory["measured"] else 0
    asked = {
        "nodes": best["nodes"],
        "ntasks-per-node": processes,
        "cpus-per-task": best["cores_per_process"],
        "mem": f"{math.ceil(memory['bytes'] * processes * (1 + margin) / 2**20)}M",
        "time": max(1, math.ceil(best["job_seconds"]["high"] * (1 + TIME_MARGIN) / 60)),
    }
    if advice["partition"]:
        asked["partition"] = advice["partition"]
    for name, value in asked.items():
        yield f"#SBATCH --{name}={value}"
    yield (
        f"# --time, in minutes: the upper end of {_interval(best['job_seconds'], span)}, and "
        f"{TIME_MARGIN:.0%} more."
    )
    yield (
        f"# --mem: {counted(processes, 'process', 'processes')} of "
        f"{size(memory['bytes'])} ({memory['source']})"
        f"{f', and {MEMORY_MARGIN:.0%} more' if margin else ''}."
    )
