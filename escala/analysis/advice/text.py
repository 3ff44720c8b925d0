"""Write an advice in words: the answer, and the lines of a job script.

All functions read the content of advice.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from escala.analysis import laws
from escala.analysis.advice import changes
from escala.analysis.advice.candidates import BOUNDS, MEASURED, PREDICTED, names_of
from escala.analysis.advice.choice import CORE_HOURS, DEADLINE, ENERGY, GOALS, TIME
from escala.analysis.best_use import MORE_DOES_NOT_PAY, NOT_LEARNT, TIED
from escala.analysis.verdicts import NO_VERDICT, NOT_DISTINGUISHABLE
from escala.core.readable import counted, size, span
from escala.experiment.references import NATIVE
from escala.experiment.scaling import BASELINE, STEPS
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
    """Return an estimate with its interval if there is one, such as `0.52 (0.49–0.56)`."""
    ends = "" if found["low"] is None else f" ({show(found['low'])}–{show(found['high'])})"
    return f"{show(found['estimate'])}{ends}"


def _ranks(option: Mapping) -> int:
    return option["nodes"] * option["processes"]


def headline(answer: Mapping, advice: Mapping) -> str:
    """Return the answer in one or two sentences."""
    if answer["unavailable"]:
        return f"Unavailable: {answer['unavailable']}."
    if answer["best_use"]:
        return _of_best_use(answer)
    if answer["selected"] is None:
        return f"No configuration is within the limits: {_excluded(answer['options'])}."
    base, best = (option_of(answer, answer[name]) for name in ("baseline", "selected"))
    what = _AMOUNTS[advice["goal"]]
    if not answer["distribute"]:
        return f"Do not distribute this: use {label(base)}. {_why_not(answer, what)}"
    if base["excluded"]:
        return f"Use {label(best)}. {label(base)} {base['excluded']}."
    return f"Use {label(best)}: {_fraction(best['ratio'], best, what, base)}."


def _of_best_use(answer: Mapping) -> str:
    """Return the answer that was measured."""
    use = answer["best_use"]
    other = next(each for each in use["alternatives"] if label(each) == use["closest"])
    of = _fraction(other, other, _AMOUNTS[TIME], other)
    verdict, best = use["verdict"], label(use)
    if verdict == NOT_LEARNT:
        return (
            f"Nothing is advised: {answer['workload']} does not learn, as it is no better than "
            "naming the largest class. Find settings with which it learns, then measure again."
        )
    if verdict == NO_VERDICT:
        why = f"a verdict needs {counted(other['needed'], 'paired run')}"
        if other["stays_disturbed"]:
            why = "other work disturbed too many of the runs. Measure again on an idle machine"
        return f"Not decided: {best}, the quickest that was measured, takes {of}, and {why}."
    selected = label(answer["selected"]) if answer["selected"] else None
    several = any(_ranks(each) > 1 for each in answer["options"])
    lead = "Do not distribute this: use" if several and not answer["distribute"] else "Use"
    if verdict == TIED:
        equals = [
            label(each)
            for each in use["alternatives"]
            if each["uses"] == "as much" and each["verdict"] == NOT_DISTINGUISHABLE
        ]
        either = f"{lead} {selected}. " if selected else ""
        if equals and selected in (best, *equals):
            either = f"Use {', '.join([best, *equals[:-1]])} or {equals[-1]}. "
        return (
            f"{either}The best use is not decided: {best}, the quickest that was measured, takes "
            f"{of}, {other['verdict']}."
        )
    why = "more does not pay, as it takes" if verdict == MORE_DOES_NOT_PAY else "it takes"
    return f"{lead} {selected}: {why} {of}."


def _fraction(ratio: Mapping, runs: Mapping, what: str, other: Mapping) -> str:
    """Return a ratio with its interval and, if it was measured, what is behind it.

    Such as `0.53 of the training time of single 1x1 (0.50–0.56; measured, 7 paired runs)`.
    """
    ends = [] if ratio["low"] is None else [f"{ratio['low']:.2f}–{ratio['high']:.2f}"]
    if runs["matches"] is not None:
        sessions = f" of {counted(runs['sessions'], 'session')}" if runs["sessions"] else ""
        ends.append(f"measured, {counted(runs['matches'], 'paired run')}{sessions}")
    behind = f" ({'; '.join(ends)})" if ends else ""
    return f"{ratio['estimate']:.2f} of the {what} of {label(other)}{behind}"


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
    ratio, name = nearest["ratio"], label(nearest)
    if nearest["basis"] == BOUNDS:
        may = "may pay or not: measure it" if ratio["low"] < 1 else "does not pay"
        return (
            "Nothing shows that several ranks pay. With bounds of "
            f"{ratio['low']:.2f} and {ratio['high']:.2f} of the {what}, {name} {may}."
        )
    of = _fraction(ratio, nearest, what, option_of(answer, answer["baseline"]))
    if nearest["verdict"] == NO_VERDICT:
        why = "an estimate" if ratio["low"] is None else "too few paired runs for a verdict"
        return f"It is not decided whether several ranks pay: {name} takes {of}, {why}."
    if nearest["verdict"] == NOT_DISTINGUISHABLE:
        return f"No configuration of several ranks surely pays. The nearest is {name}, with {of}."
    return f"No configuration of several ranks pays. The nearest is {name}, with {of}."


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
        basis = "" if other["basis"] == PREDICTED else f", {other['basis']}"
        yield (
            f"{label(other)} is predicted with less{basis}: {_interval(other['ratio'])} of the "
            f"{_AMOUNTS[advice['goal']]} of {label(answer['baseline'])}. Measure it before you "
            "rely on that."
        )
    for each in answer["options"]:
        if each["contradiction"]:
            measured = each["measured_ratio"]
            yield (
                f"Measured and predicted times of {label(each)} contradict each other: measured "
                f"{_interval(measured)} of the time of {measured['reference']} "
                f"({measured['verdict']}, {counted(measured['matches'], 'paired run')}), predicted "
                f"{_interval(each['predicted_ratio'])}. The measured one counts."
            )
    if answer["changes"]:
        yield (
            f"No configuration of several ranks saves {changes.SAVING:.0%} of the training time of "
            "one rank. What would have to change for that, estimated from medians of predictions, "
            "without an interval:"
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
    if best["basis"] != MEASURED and best["configured_rows"] != answer["rows"]:
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
    # Predicted and measured times are of steps.
    if rule is None or rule["time"] != STEPS:
        return
    over_first = rule["against"] == BASELINE
    gained = [best["speedup"][end] for end in ("estimate", "low", "high")]
    each, low, high = (
        None if gain is None else gain / times if over_first
        else laws.efficiency_of_doubling(gain, times)
        for gain in gained
    )  # fmt: skip
    if each is not None:
        needed = rule["efficiency"]
        doubling = f"Each doubling of the cores has an efficiency of {each:.2f}, which"
        what = "That" if over_first else doubling
        reaches = "is not decided to reach"
        if low is not None and low >= needed:
            reaches = "reaches"
        elif high is not None and high < needed:
            reaches = "does not reach"
        yield f"{what} {reaches} the {needed:g} of the rule of {rule['name']}."


def _cores(option: Mapping) -> int:
    return _ranks(option) * option["cores_per_process"]


def _change(each: Mapping) -> str:
    """Return a sentence on one change."""
    name, saved, value = label(each), f"{changes.SAVING:.0%}", each["value"]
    note = " (extrapolated)" if each["extrapolated"] else ""
    kind, found = each["change"], value is not None
    if kind == changes.BANDWIDTH:
        if found:
            return f"Bandwidth: {name} saves {saved} from about {value / 1e9:.2g} Gbit/s{note}."
        return f"Bandwidth: no link is fast enough for {name} to save {saved}{note}."
    if kind == changes.BATCH:
        if found:
            return (
                f"Batch: {name} saves {saved} from about {value:.0f} rows in a step{note}. One "
                "rank has these rows too, so the updates are fewer, and scores may differ."
            )
        return f"Batch: no number of rows that was tried lets {name} save {saved}{note}."
    if kind == changes.CORES:
        if found:
            return f"Cores: {name} saves {saved} on nodes of {value:.0f} cores{note}."
        return f"Cores: more cores of a node do not let {name} save {saved}{note}."
    knob = "communication_hook" if reads(each["strategy"], "communication_hook") else "compression"
    how = f"`{knob}: fp16`" if kind == changes.COMPRESSION else "`dense_exchange: factors`"
    does = f"saves {saved}" if each["saves"] else f"does not save {saved}"
    ratio = f"about {each['ratio']:.2f} of the training time of one rank"
    return f"Compression: with {how}, {name} {does}: {ratio}{note}."


def _table(answer: Mapping, advice: Mapping) -> Iterator[str]:
    goal = advice["goal"]
    yield f"| configuration | {_AMOUNTS[goal]}, {GOALS[goal]} | ratio | rests on |"
    yield "| --- | --- | --- | --- |"
    for each in answer["options"]:
        amount, ratio = (_interval(each["amount"], "{:.3g}".format), _interval(each["ratio"]))
        note = f"; excluded: {each['excluded']}" if each["excluded"] else ""
        yield f"| {label(each)} | {amount} | {ratio} | {each['basis']}{note} |"


def _upper(seconds: Mapping) -> float:
    return seconds["estimate"] if seconds["high"] is None else seconds["high"]


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
        "time": max(1, math.ceil(_upper(best["job_seconds"]) * (1 + TIME_MARGIN) / 60)),
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
