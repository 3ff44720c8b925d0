"""Write an advice in words: the answer, the lines of a job script, a statement on scaling.

All functions read the content of advice.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from escala.analysis import queue_waits
from escala.analysis.advice import changes
from escala.analysis.advice.candidates import BOUNDS
from escala.analysis.advice.choice import span
from escala.analysis.advice.goals import (
    CORE_HOURS,
    DEADLINE,
    ENERGY,
    GOALS,
    TIME,
    TIME_WITH_WAIT,
)
from escala.analysis.cost_model.calibration import LEVEL
from escala.analysis.statistics import LEVEL as MEASURED_LEVEL
from escala.core import readable
from escala.core.readable import counted
from escala.experiment.references import NATIVE, Configuration

#: A job script asks for so much more than the upper end of the predicted time, and than the
#: measured memory.
TIME_MARGIN, MEMORY_MARGIN = 0.25, 0.2
#: Configurations that are named where none is within the limits.
_NAMED = 3
_DIRECTIVE = "#SBATCH "
_AMOUNTS = {
    TIME: "training time",
    TIME_WITH_WAIT: "time with the wait",
    CORE_HOURS: "core-hours",
    ENERGY: "energy",
    DEADLINE: "core-hours",
}


def label(names: Mapping[str, str]) -> str:
    """Return the name of a configuration."""
    return str(Configuration(*(names[name] for name in Configuration._fields)))


def _same(one: Mapping, other: Mapping) -> bool:
    return all(one[name] == other[name] for name in Configuration._fields)


def option_of(answer: Mapping, names: Mapping[str, str]) -> dict:
    """Return the option of a configuration."""
    return next(each for each in answer["options"] if _same(each, names))


def _spread(found: Mapping, show=lambda value: f"{value:.2f}") -> str:
    return f"{show(found['estimate'])} ({show(found['low'])}–{show(found['high'])})"


def headline(answer: Mapping, advice: Mapping) -> str:
    """Return the answer in one or two sentences."""
    if answer["unavailable"]:
        return f"Unavailable: {answer['unavailable']}."
    base = option_of(answer, answer["baseline"])
    if answer["chosen"] is None:
        return f"No configuration is within the limits: {_excluded(answer['options'])}."
    best = option_of(answer, answer["chosen"])
    if not answer["distribute"]:
        return f"Do not distribute this: use {label(base)}. {_why_not(answer, advice['goal'])}"
    if base["excluded"]:
        return f"Use {label(best)}. {label(base)} {base['excluded']}."
    ratio, what = best["ratio"], _AMOUNTS[advice["goal"]]
    return (
        f"Use {label(best)}: {ratio['estimate']:.2f} of the {what} of {label(base)} "
        f"({ratio['low']:.2f}–{ratio['high']:.2f}{_basis(best)})."
    )


def _basis(option: Mapping) -> str:
    measured = option["measured_ratio"]
    return f"; measured, {_behind(measured)}" if measured else ""


def _behind(measured: Mapping) -> str:
    """Tell what a measured ratio rests on."""
    parts = [counted(measured["pairs"], "pair")]
    if measured["sessions"]:
        parts[0] += f" of {counted(measured['sessions'], 'session')}"
    if measured["best_of"] > 1:
        parts.append(f"best of {measured['best_of']}")
    return ", ".join(parts)


def _excluded(options: Sequence[Mapping]) -> str:
    """Return why the shortest jobs cannot be chosen, and how many others there are."""
    shortest = sorted(options, key=lambda each: each["job_seconds"]["estimate"])
    named = "; ".join(f"{label(each)} {each['excluded']}" for each in shortest[:_NAMED])
    others = len(shortest[_NAMED:])
    return f"{named}; and {counted(others, 'other')}" if others else named


def _why_not(answer: Mapping, goal: str) -> str:
    if answer["nearest"] is None:
        several = [each for each in answer["options"] if each["nodes"] * each["processes"] > 1]
        if not several:
            return "No configuration of several ranks is predicted."
        return f"No configuration of several ranks is within the limits: {_excluded(several)}."
    nearest = option_of(answer, answer["nearest"])
    if nearest["basis"] == BOUNDS:
        ratio = nearest["ratio"]
        may = "may pay or not: measure it" if ratio["low"] < 1 else "does not pay"
        return (
            "Nothing shows that several ranks pay. With bounds of "
            f"{ratio['low']:.2f} and {ratio['high']:.2f} of the {_AMOUNTS[goal]}, "
            f"{label(nearest)} {may}."
        )
    return (
        f"No configuration of several ranks pays. The nearest is {label(nearest)}, "
        f"with {_spread(nearest['ratio'])} of the {_AMOUNTS[goal]} ({nearest['basis']})."
    )


def lines(advice: Mapping) -> Iterator[str]:
    """Yield an advice as readable text."""
    for answer in advice["answers"]:
        network = "" if answer["network"] == NATIVE else f", {answer['network']}"
        yield f"{answer['workload']} on {answer['dataset']}{network}"
        yield from (f"  {each}" for each in _body(answer, advice))
        yield ""


def markdown(advice: Mapping) -> Iterator[str]:
    """Yield an advice as Markdown, with the statements on scaling."""
    yield f"# Advice for {advice['experiment']}"
    yield ""
    yield f"Goal: {advice['goal']}. {_limits(advice)}"
    for answer in advice["answers"]:
        network = "" if answer["network"] == NATIVE else f", {answer['network']}"
        yield ""
        yield f"## {answer['workload']} on {answer['dataset']}{network}"
        yield ""
        yield f"**{answer['answer']}**"
        for each in _sentences(answer, advice):
            yield ""
            yield each
        if answer["options"]:
            yield ""
            yield from _table(answer, advice)
        if answer["job_script"]:
            yield ""
            yield "```"
            yield from answer["job_script"]
            yield "```"
        if answer["statement"]:
            yield ""
            yield "### For a proposal"
            yield ""
            yield answer["statement"]


def _limits(advice: Mapping) -> str:
    limits = advice["limits"]
    shown = {
        "nodes": lambda value: counted(value, "node"),
        "cores": lambda value: counted(value, "core"),
        "memory_bytes": lambda value: f"{readable.size(value)} of memory on a node",
        "seconds": span,
    }
    found = [show(limits[name]) for name, show in shown.items() if limits[name] is not None]
    return f"Limits: {', '.join(found)}." if found else "No limits."


def _body(answer: Mapping, advice: Mapping) -> Iterator[str]:
    yield answer["answer"]
    yield from _sentences(answer, advice)
    yield from answer["job_script"]


def _sentences(answer: Mapping, advice: Mapping) -> Iterator[str]:
    """Yield the sentences below an answer."""
    if answer["chosen"]:
        best = option_of(answer, answer["chosen"])
        yield (
            f"Training takes {_spread(best['seconds'], span)}, and the whole job "
            f"{_spread(best['job_seconds'], span)}."
        )
        if best["extrapolated_start"]:
            yield f"In the time of the whole job, {'; '.join(best['extrapolated_start'])}."
        if best["configured_rows"] != answer["rows"]:
            yield _batch(answer["rows"], best["configured_rows"])
        if advice["goal"] not in (TIME, TIME_WITH_WAIT):
            yield _amount(best["amount"], advice["goal"], answer["energy_source"])
        yield from _waiting(answer, best, advice)
        if best["extrapolated"]:
            yield f"Extrapolated, and not covered by the intervals: {_joined(best)}."
    if answer["passed_over"]:
        other = option_of(answer, answer["passed_over"])
        yield (
            f"{label(other)} is predicted with less, {_spread(other['ratio'])}, but extrapolated "
            "and not measured. A measured configuration that pays comes first."
        )
    yield from (_contradiction(each) for each in answer["options"] if each["contradiction"])
    if answer["changes"]:
        yield (
            f"No configuration of several ranks saves {changes.SAVING:.0%} of the training time of "
            "one rank. What would have to change for that:"
        )
    for each in answer["changes"]:
        yield _change(each)
    for each in answer["unpredicted"]:
        yield f"{label(each)} is not predicted: {each['reason']}."


def _contradiction(option: Mapping) -> str:
    measured = option["measured_ratio"]
    return (
        f"Measured and predicted times of {label(option)} contradict each other: measured "
        f"{_spread(measured)} of the time of {measured['reference']} ({measured['verdict']}, "
        f"{_behind(measured)}), predicted {_spread(option['predicted_ratio'])}. "
        "The measured one counts."
    )


def _batch(rows: int, configured: int) -> str:
    return (
        f"All ranks together have {rows} rows in a step, as one process has: set "
        f"`batch: {{rows: {rows}, per: global}}`. The experiment has {configured} rows, and so "
        "makes other updates."
    )


def _joined(option: Mapping) -> str:
    return "; ".join(option["extrapolated"])


def _amount(found: Mapping, goal: str, source: str | None) -> str:
    unit, of = GOALS[goal], f", by the {source}" if source else ""
    what = "energy" if goal == ENERGY else "cost"
    return f"Its {what} is {_spread(found, lambda value: f'{value:.3g}')} {unit}{of}."


def _waiting(answer: Mapping, best: Mapping, advice: Mapping) -> Iterator[str]:
    wait = best["wait"]
    if wait is None:
        if advice["goal"] == DEADLINE:
            yield "No queue is known: the deadline counts from the start of the job."
        return
    jobs = counted(wait["jobs"], "job")
    of = f"In the partition {advice['partition']}, your {jobs} of this size"
    if not wait["jobs"]:
        yield f"In the partition {advice['partition']}, you have no job of this size."
    else:
        median, longest = (span(wait[f"{name}_seconds"]) for name in ("median", "longest"))
        yield f"{of} waited {median} (median), and {longest} at the longest."
    if advice["own_jobs"] is None:
        yield "The names of your jobs are not known: jobs of Escala's own runs may be among them."
    elif advice["own_jobs"]:
        yield (
            f"Left out: {counted(advice['own_jobs'], 'job')} of Escala's own runs. Many are "
            "submitted at once, and wait for each other."
        )
    if wait["pending"]:
        yield f"Of these jobs, {wait['pending']} still wait."
    yield _bound(wait, best)
    if answer["test_only_seconds"] is not None:
        yield (
            f"SLURM's own estimate of the wait (sbatch --test-only) is "
            f"{span(answer['test_only_seconds'])}; such estimates are often wrong."
        )


def _bound(wait: Mapping, best: Mapping) -> str:
    needed = queue_waits.jobs_needed()
    if wait["bound_seconds"] is not None:
        bound = span(wait["bound_seconds"])
        return (
            f"At least {queue_waits.COVERAGE:.0%} of such jobs wait {bound} or less, with "
            f"{queue_waits.CONFIDENCE:.0%} confidence. Then the job ends within "
            f"{span(best['at_most_seconds'])} from now."
        )
    if wait["jobs"] < needed:
        return f"These are too few jobs for a bound ({wait['jobs']} of {needed})."
    return "There is no bound, because too many jobs still wait."


def _change(each: Mapping) -> str:
    """Return a sentence on one change."""
    name, saved = label(each), f"{changes.SAVING:.0%}"
    note = " (extrapolated)" if each["extrapolated"] else ""
    value, ratio = each["value"], f"{each['ratio']:.2f} of the training time of one rank"
    kind = each["change"]
    if kind == changes.BANDWIDTH:
        if value is None:
            return f"Bandwidth: no link is fast enough for {name} to save {saved}{note}."
        return f"Bandwidth: {name} saves {saved} from {value / 1e9:.3g} Gbit/s{note}."
    if kind == changes.BATCH:
        if value is None:
            return f"Batch: no number of rows that was tried lets {name} save {saved}{note}."
        return (
            f"Batch: {name} saves {saved} from {value:.0f} rows in a step{note}. One rank has "
            "these rows too, so the updates are fewer, and scores may differ."
        )
    if kind == changes.CORES:
        if value is None:
            return f"Cores: more cores of a node do not let {name} save {saved}{note}."
        return f"Cores: {name} saves {saved} on nodes of {value:.0f} cores{note}."
    how = "`compression: fp16`" if kind == changes.COMPRESSION else "`dense_exchange: factors`"
    does = f"saves {saved}" if each["saves"] else f"does not save {saved}"
    return f"Compression: with {how}, {name} {does}: {ratio}{note}."


def _table(answer: Mapping, advice: Mapping) -> Iterator[str]:
    unit = GOALS[advice["goal"]]
    yield f"| configuration | {_AMOUNTS[advice['goal']]}, {unit} | ratio | rests on |"
    yield "| --- | --- | --- | --- |"
    for each in answer["options"]:
        amount = "–" if each["amount"] is None else _spread(each["amount"], lambda v: f"{v:.3g}")
        ratio = "–" if each["ratio"] is None else _spread(each["ratio"])
        basis = each["basis"]
        note = f"{basis}; excluded: {each['excluded']}" if each["excluded"] else basis
        yield f"| {label(each)} | {amount} | {ratio} | {note} |"


def job_script(answer: Mapping, advice: Mapping) -> Iterator[str]:
    """Yield the lines of a job script that ask SLURM for what the choice needs, and why."""
    if answer["chosen"] is None:
        return
    best = option_of(answer, answer["chosen"])
    minutes = max(1, math.ceil(best["job_seconds"]["high"] * (1 + TIME_MARGIN) / 60))
    asked = {
        "nodes": best["nodes"],
        "ntasks-per-node": best["processes"],
        "cpus-per-task": best["cores_per_process"],
        "mem": f"{_mebibytes(best)}M",
        "time": minutes,
    }
    if advice["partition"]:
        asked["partition"] = advice["partition"]
    for name, value in asked.items():
        yield f"{_DIRECTIVE}--{name}={value}"
    yield (
        f"# --time, in minutes: the upper end of {_spread(best['job_seconds'], span)}, and "
        f"{TIME_MARGIN:.0%} more."
    )
    memory, margin = best["memory"], f", and {MEMORY_MARGIN:.0%} more"
    yield (
        f"# --mem: {counted(best['processes'], 'process', 'processes')} of "
        f"{readable.size(memory['bytes'])} ({memory['source']})"
        f"{margin if memory['measured'] else ''}."
    )


def _mebibytes(option: Mapping) -> int:
    memory = option["memory"]
    margin = MEMORY_MARGIN if memory["measured"] else 0
    return math.ceil(memory["bytes"] * option["processes"] * (1 + margin) / 2**20)


def options(script: Sequence[str]) -> list[str]:
    """Return the options of `sbatch` in the lines of a job script."""
    return [line.removeprefix(_DIRECTIVE) for line in script if line.startswith(_DIRECTIVE)]


def statement(answer: Mapping, advice: Mapping) -> Iterator[str]:
    """Yield a statement on scaling for a proposal for compute time, as Markdown.

    It is on the chosen strategy, variant and network, or on the nearest one if none is chosen.
    """
    names = answer["chosen"] if answer["distribute"] else answer["nearest"]
    if names is None:
        return
    base = option_of(answer, answer["baseline"])
    family = sorted(
        (each for each in answer["options"] if _of_family(each, names)),
        key=lambda each: (each["nodes"] * each["processes"], each["nodes"]),
    )
    network = "" if names["network"] == NATIVE else f" over the network {names['network']}"
    yield (
        f"Scaling of {answer['workload']} on {answer['dataset']} with {names['strategy']}, variant "
        f"{names['variant']}{network}. The speed-up is the training time of {label(base)} divided "
        "by that of a layout. The efficiency is the speed-up divided by the ratio of their cores. "
        f"Every step of all ranks together has {answer['rows']} rows, so all layouts make the same "
        "updates."
    )
    yield ""
    yield "| layout | ranks | cores | speed-up | efficiency | source |"
    yield "| --- | --- | --- | --- | --- | --- |"
    yield from _rows(base, base)
    for each in family:
        yield from _rows(each, base)
    yield ""
    yield " ".join(_method(answer, advice, family))


def _of_family(each: Mapping, names: Mapping) -> bool:
    same = each["strategy"] == names["strategy"] and each["variant"] == names["variant"]
    return same and (each["nodes"] == 1 or each["network"] == names["network"])


def _rows(each: Mapping, base: Mapping) -> Iterator[str]:
    ranks = each["nodes"] * each["processes"]
    cores = ranks * each["cores_per_process"]
    start = f"| {each['layout']} | {ranks} | {cores} |"
    if each is base:
        yield f"{start} 1 | 1 | by definition |"
        return
    basis = "extrapolated" if each["extrapolated"] else "predicted"
    yield f"{start} {_spread(each['speedup'])} | {_spread(each['efficiency'])} | {basis} |"
    measured: Mapping[str, Any] | None = each["measured_speedup"]
    if measured:
        share = base["cores_per_process"] / cores
        efficiency = {name: measured[name] * share for name in ("estimate", "low", "high")}
        behind = _behind(each["measured_ratio"])
        yield f"{start} {_spread(measured)} | {_spread(efficiency)} | measured, {behind} |"


def _method(answer: Mapping, advice: Mapping, family: Sequence[Mapping]) -> Iterator[str]:
    machine = advice["machine"]
    yield (
        f"Predictions have {LEVEL:.0%} intervals. They come from a cost model that was calibrated "
        f"with {answer['repeats']} repeats on {machine.get('cpu', 'an unnamed machine')} with "
        f"{machine['cores_per_node']} cores per node."
    )
    if any(each["measured_speedup"] for each in family):
        yield (
            f"Measured speed-ups are of pairs of runs, each of one session, with "
            f"{MEASURED_LEVEL:.0%} intervals. Those of the best of several hold for all of them "
            "together, and those of several sessions cover how sessions differ."
        )
    phrases = dict.fromkeys(phrase for each in family for phrase in each["extrapolated"])
    if phrases:
        yield f"Extrapolated, and not covered by the intervals: {'; '.join(phrases)}."
