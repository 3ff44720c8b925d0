"""Write an advice: in words, as lines of a job script, and as the content of advice.json."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from escala.analysis import laws
from escala.analysis.advice import Advice, Answer, changes
from escala.analysis.advice.candidates import BOUNDS, MEASURED, PREDICTED, Paired
from escala.analysis.advice.choice import (
    CORE_HOURS,
    DEADLINE,
    ENERGY,
    GOALS,
    TIME,
    Choice,
    Option,
)
from escala.analysis.best_use import MORE_DOES_NOT_PAY, NOT_LEARNT, TIED, Alternative, BestUse
from escala.analysis.statistics import MATCHES_FOR_INTERVAL, Interval
from escala.analysis.verdicts import NO_VERDICT, NOT_DISTINGUISHABLE
from escala.core.readable import size, span, with_interval, with_noun
from escala.experiment.runs import NATIVE
from escala.experiment.scaling import BASELINE, STEPS
from escala.strategies.knobs import reads

#: Version of advice.json. Its schema is `schemas/advice.schema.yaml`.
FORMAT = 1
#: Fractions that a job script adds: to the upper end of the predicted time, and to the measured
#: memory.
TIME_MARGIN, MEMORY_MARGIN = 0.25, 0.2
#: Number of configurations that are named if no configuration is within the limits.
_MOST_NAMED = 3
_AMOUNTS = {
    TIME: "training time",
    CORE_HOURS: "core-hours",
    ENERGY: "energy",
    DEADLINE: "core-hours",
}


def _span_with_interval(seconds: Interval) -> str:
    """Return a duration with its interval, if known, such as `42 s (40 s–45 s)`."""
    estimate, *ends = (bound and span(bound) for bound in seconds)
    return f"{estimate} ({'–'.join(ends)})" if seconds.low is not None else estimate


def headline(answer: Answer, goal: str) -> str:
    """Return the answer in one or two sentences."""
    if answer.unavailable:
        return f"Unavailable: {answer.unavailable}."
    choice, amount = answer.choice, _AMOUNTS[goal]
    if choice.best_use:
        return _headline_of_best_use(answer, choice.best_use)
    if choice.best is None:
        return f"No configuration is within the limits: {_exclusions(choice.options)}."
    base, best, nearest = choice.baseline, choice.best, choice.nearest
    if choice.distribute:
        if base.excluded:
            return f"Use {best.label}. {base.label} {base.excluded}."
        return f"Use {best.label}: {_fraction(best.ratio, best.paired, amount, base.label)}."
    lead = f"Do not distribute this: use {base.label}."
    if nearest is None:
        several = [option for option in choice.options if option.candidate.ranks > 1]
        if not several:
            return f"{lead} No configuration of several ranks is predicted."
        reasons = _exclusions(several)
        return f"{lead} No configuration of several ranks is within the limits: {reasons}."
    ratio, name = nearest.ratio, nearest.label
    if nearest.candidate.basis == BOUNDS:
        pays = "may pay or not: measure it" if ratio.low < 1 else "does not pay"
        return (
            f"{lead} Nothing shows that several ranks pay. With bounds of "
            f"{ratio.low:.2f} and {ratio.high:.2f} of the {amount}, {name} {pays}."
        )
    fraction = _fraction(ratio, nearest.paired, amount, base.label)
    if nearest.verdict == NO_VERDICT:
        basis = "an estimate" if ratio.low is None else "too few paired runs for a verdict"
        return (
            f"{lead} It is not decided whether several ranks pay: {name} takes {fraction}, {basis}."
        )
    pays = "surely pays" if nearest.verdict == NOT_DISTINGUISHABLE else "pays"
    return (
        f"{lead} No configuration of several ranks {pays}. The nearest is {name}, with {fraction}."
    )


def _headline_of_best_use(answer: Answer, use: BestUse) -> str:
    """Return the headline of an answer that the measured best use decides."""
    choice, rival, verdict, best = answer.choice, use.closest, use.verdict, use.label
    paired = _pair_of(rival)
    fraction = _fraction(paired.ratio, paired, _AMOUNTS[TIME], rival.label)
    if verdict == NOT_LEARNT:
        return (
            f"Nothing is advised: {answer.workload} does not learn, as it is no better than "
            "naming the largest class. Find settings with which it learns, then measure again."
        )
    if verdict == NO_VERDICT:
        reason = f"a verdict needs {with_noun(MATCHES_FOR_INTERVAL, 'paired run')}"
        if rival.row["stays_disturbed"]:
            reason = "other work disturbed too many of the runs. Measure again on an idle machine"
        return (
            f"Not decided: {best}, the quickest that was measured, takes {fraction}, and {reason}."
        )
    several = any(option.candidate.ranks > 1 for option in choice.options)
    lead = "Do not distribute this: use" if several and not choice.distribute else "Use"
    selected = choice.best and choice.best.label
    if verdict == TIED:
        either = f"{lead} {selected}. " if selected else ""
        if use.equals and selected in (best, *use.equals):
            either = f"Use {', '.join([best, *use.equals[:-1]])} or {use.equals[-1]}. "
        return (
            f"{either}The best use is not decided: {best}, the quickest that was measured, takes "
            f"{fraction}, {rival.verdict}."
        )
    takes = "more does not pay, as it takes" if verdict == MORE_DOES_NOT_PAY else "it takes"
    return f"{lead} {selected}: {takes} {fraction}."


def _pair_of(rival: Alternative) -> Paired:
    """Return the ratio of the best use to an alternative; an unknown end is None."""
    ratio = Interval(*(None if math.isnan(end) else end for end in rival.ratio[:3]))
    sessions = int(rival.row["sessions"]) if rival.row["over_sessions"] is True else None
    return Paired(rival.configuration, ratio, rival.verdict, rival.ratio.matches, sessions)


def _fraction(ratio: Interval, paired: Paired | None, amount: str, reference: str) -> str:
    """Return a ratio with its interval and, if it was measured, the number of paired runs.

    An example: `0.53 of the training time of single 1x1 (0.50–0.56; measured, 7 paired runs)`.
    """
    notes = [] if ratio.low is None else [f"{ratio.low:.2f}–{ratio.high:.2f}"]
    if paired:
        sessions = f" of {with_noun(paired.sessions, 'session')}" if paired.sessions else ""
        notes.append(f"measured, {with_noun(paired.matches, 'paired run')}{sessions}")
    in_brackets = f" ({'; '.join(notes)})" if notes else ""
    return f"{ratio.estimate:.2f} of the {amount} of {reference}{in_brackets}"


def _exclusions(options: Sequence[Option]) -> str:
    """Return why each of the shortest jobs is excluded, and the number of other options."""
    shortest = sorted(options, key=lambda option: option.job_seconds.estimate)
    named = "; ".join(f"{option.label} {option.excluded}" for option in shortest[:_MOST_NAMED])
    others = len(shortest[_MOST_NAMED:])
    return f"{named}; and {with_noun(others, 'other')}" if others else named


def _title(answer: Answer) -> str:
    network = "" if answer.network == NATIVE else f", {answer.network}"
    return f"{answer.workload} on {answer.dataset}{network}"


def lines(advice: Advice) -> Iterator[str]:
    """Yield an advice as readable text."""
    for answer in advice.answers:
        yield _title(answer)
        yield f"  {headline(answer, advice.question.goal)}"
        yield from (f"  {line}" for line in _sentences(answer, advice))
        yield from (f"  {line}" for line in job_script(answer, advice.question.partition))
        yield ""


def markdown(advice: Advice) -> Iterator[str]:
    """Yield an advice as Markdown."""
    goal, limits = advice.question.goal, advice.question.limits
    in_words = {
        "nodes": lambda value: with_noun(value, "node"),
        "cores": lambda value: with_noun(value, "core"),
        "memory_bytes": lambda value: f"{size(value)} of memory on a node",
        "seconds": span,
    }
    limits_in_words = [
        in_words[name](limit) for name, limit in asdict(limits).items() if limit is not None
    ]
    within = f"Limits: {', '.join(limits_in_words)}." if limits_in_words else "No limits."
    yield f"# Advice for {advice.experiment}"
    yield f"\nGoal: {goal}. {within}"
    for answer in advice.answers:
        yield f"\n## {_title(answer)}"
        yield f"\n**{headline(answer, goal)}**"
        yield from (f"\n{sentence}" for sentence in _sentences(answer, advice))
        if answer.choice:
            yield f"\n| configuration | {_AMOUNTS[goal]}, {GOALS[goal]} | ratio | rests on |"
            yield "| --- | --- | --- | --- |"
            for option in answer.choice.options:
                amount = with_interval(*option.amount, ".3g")
                note = f"; excluded: {option.excluded}" if option.excluded else ""
                basis = f"{option.candidate.basis}{note}"
                ratio = with_interval(*option.ratio, ".2f")
                yield f"| {option.label} | {amount} | {ratio} | {basis} |"
        if script := [*job_script(answer, advice.question.partition)]:
            yield from ("\n```", *script, "```")


def _sentences(answer: Answer, advice: Advice) -> Iterator[str]:
    """Yield the sentences below the headline of an answer."""
    choice, amount = answer.choice, _AMOUNTS[advice.question.goal]
    if choice and choice.best:
        yield from _sentences_on_best(choice.best, choice, advice)
    if choice and (option := choice.passed_over):
        basis = "" if option.candidate.basis == PREDICTED else f", {option.candidate.basis}"
        yield (
            f"{option.label} is predicted with less{basis}: "
            f"{with_interval(*option.ratio, '.2f')} of the {amount} of {choice.baseline.label}. "
            "Measure it before you rely on that."
        )
    for option in choice.options if choice else ():
        if option.candidate.contradicts:
            paired = option.candidate.paired
            yield (
                f"Measured and predicted times of {option.label} contradict each other: measured "
                f"{with_interval(*paired.ratio, '.2f')} of the time of {paired.reference} "
                f"({paired.verdict}, {with_noun(paired.matches, 'paired run')}), predicted "
                f"{with_interval(*option.candidate.predicted, '.2f')}. The measured one counts."
            )
    if answer.changes:
        yield (
            f"No configuration of several ranks saves {changes.SAVING:.0%} of the training time of "
            "one rank. What would have to change for that, estimated from medians of predictions, "
            "without an interval:"
        )
        yield from map(_sentence_on_change, answer.changes)
    for configuration, reason in answer.unpredicted.items():
        yield f"{configuration} is not predicted: {reason}."


def _sentences_on_best(best: Option, choice: Choice, advice: Advice) -> Iterator[str]:
    """Yield sentences on the selected option."""
    candidate, goal = best.candidate, advice.question.goal
    yield (
        f"Training takes {_span_with_interval(best.seconds)}, and the whole job "
        f"{_span_with_interval(best.job_seconds)}."
    )
    if candidate.extrapolated_start:
        yield f"In the time of the whole job, {'; '.join(candidate.extrapolated_start)}."
    rows = choice.baseline.candidate.setup.rows
    if candidate.basis != MEASURED and candidate.configured_rows != rows:
        yield (
            f"All ranks together have {rows} rows in a step, as one process has: set "
            f"`batch: {{rows: {rows}, per: global}}`. The experiment has "
            f"{candidate.configured_rows} rows, and so makes other updates."
        )
    yield from _sentences_on_efficiency(best, choice.baseline, advice)
    if goal != TIME:
        amount = "energy" if goal == ENERGY else "cost"
        source = f", by the {advice.power.source}" if goal == ENERGY else ""
        yield f"Its {amount} is {with_interval(*best.amount, '.3g')} {GOALS[goal]}{source}."
    if goal == DEADLINE:
        yield "The deadline counts from the start of the job: no wait in a queue is known."
    if candidate.extrapolated:
        notes = "; ".join(candidate.extrapolated)
        yield f"Extrapolated, and not covered by the intervals: {notes}."


def _sentences_on_efficiency(best: Option, base: Option, advice: Advice) -> Iterator[str]:
    """Yield sentences on the efficiency of the selected option, and on the rule of the study."""
    times_cores, rule = best.candidate.cores / base.candidate.cores, advice.rules
    if times_cores <= 1:
        return
    yield (
        f"Its efficiency is {with_interval(*best.efficiency, '.2f')}, with {times_cores:g} times "
        f"the cores of {base.label} ({best.candidate.basis})."
    )
    # A rule of whole runs cannot be judged: predicted and measured times are of steps.
    if rule is None or rule["time"] != STEPS:
        return
    if rule["against"] == BASELINE:
        subject, (efficiency, low, high) = "That", best.efficiency
    else:
        efficiency, low, high = (
            None if speedup is None else laws.efficiency_of_doubling(speedup, times_cores)
            for speedup in best.speedup
        )
        if efficiency is None:
            return
        subject = f"Each doubling of the cores has an efficiency of {efficiency:.2f}, which"
    reaches = "is not decided to reach"
    if low is not None and low >= rule["efficiency"]:
        reaches = "reaches"
    elif high is not None and high < rule["efficiency"]:
        reaches = "does not reach"
    yield f"{subject} {reaches} the {rule['efficiency']:g} of the rule of {rule['name']}."


def _sentence_on_change(change: changes.Change) -> str:
    name, value, saved = change.candidate.configuration, change.value, f"{changes.SAVING:.0%}"
    note = " (extrapolated)" if change.extrapolated else ""
    if change.change == changes.BANDWIDTH:
        if value is not None:
            return f"Bandwidth: {name} saves {saved} from about {value / 1e9:.2g} Gbit/s{note}."
        return f"Bandwidth: no link is fast enough for {name} to save {saved}{note}."
    if change.change == changes.BATCH:
        if value is not None:
            return (
                f"Batch: {name} saves {saved} from about {value:.0f} rows in a step{note}. One "
                "rank has these rows too, so the updates are fewer, and scores may differ."
            )
        return f"Batch: no number of rows that was tried lets {name} save {saved}{note}."
    if change.change == changes.CORES:
        if value is not None:
            return f"Cores: {name} saves {saved} on nodes of {value:.0f} cores{note}."
        return f"Cores: more cores of a node do not let {name} save {saved}{note}."
    knob = "`dense_exchange: factors`"
    if change.change == changes.COMPRESSION:
        has_hook = reads(name.strategy, "communication_hook")
        knob = f"`{'communication_hook' if has_hook else 'compression'}: fp16`"
    saves = f"saves {saved}" if change.saves else f"does not save {saved}"
    ratio = f"about {change.ratio:.2f} of the training time of one rank"
    return f"Compression: with {knob}, {name} {saves}: {ratio}{note}."


def job_script(answer: Answer, partition: str | None) -> Iterator[str]:
    """Yield the lines of a job script for SLURM that request what the choice needs."""
    best = answer.choice and answer.choice.best
    if not best:
        return
    job, memory = best.job_seconds, best.candidate.memory
    layout, processes = best.candidate.setup.layout, best.candidate.setup.layout.processes
    upper = job.estimate if job.high is None else job.high
    margin = MEMORY_MARGIN if memory.measured else 0
    yield f"#SBATCH --nodes={layout.nodes}"
    yield f"#SBATCH --ntasks-per-node={processes}"
    yield f"#SBATCH --cpus-per-task={best.candidate.setup.cores}"
    yield f"#SBATCH --mem={math.ceil(memory.bytes * processes * (1 + margin) / 2**20)}M"
    yield f"#SBATCH --time={max(1, math.ceil(upper * (1 + TIME_MARGIN) / 60))}"
    if partition:
        yield f"#SBATCH --partition={partition}"
    yield (
        f"# --time, in minutes: the upper end of {_span_with_interval(job)}, and "
        f"{TIME_MARGIN:.0%} more."
    )
    yield (
        f"# --mem: {with_noun(processes, 'process', 'processes')} of "
        f"{size(memory.bytes)} ({memory.source})"
        f"{f', and {MEMORY_MARGIN:.0%} more' if margin else ''}."
    )


def content(advice: Advice) -> dict[str, Any]:
    """Return the content of advice.json."""
    question = advice.question
    return {
        "format": FORMAT,
        "experiment": advice.experiment,
        "goal": question.goal,
        "limits": asdict(question.limits),
        "partition": question.partition,
        "rules": advice.rules,
        "machine": advice.machine,
        "answers": [_answer_content(answer, advice) for answer in advice.answers],
    }


def _answer_content(answer: Answer, advice: Advice) -> dict[str, Any]:
    choice, question, training = answer.choice, advice.question, answer.training
    base = choice and choice.baseline.candidate
    return {
        "dataset": answer.dataset,
        "workload": answer.workload,
        "network": answer.network,
        "epochs": training.epochs,
        "train_rows": training.train_rows,
        "rows": base and base.setup.rows,
        "unavailable": answer.unavailable,
        "energy_source": advice.power.source if choice and question.goal == ENERGY else None,
        "distribute": choice and choice.distribute,
        "repeats": base and base.repeats,
        "best_use": choice and choice.best_use and _best_use_content(choice.best_use),
        **{
            name: option and option.candidate.configuration._asdict()
            for name, option in (
                ("selected", choice and choice.best),
                ("baseline", choice and choice.baseline),
                ("nearest", choice and choice.nearest),
                ("passed_over", choice and choice.passed_over),
            )
        },
        "options": [_option_content(option) for option in choice.options] if choice else [],
        "changes": [
            change.candidate.configuration._asdict()
            | {"unit": changes.UNITS.get(change.change)}
            | _to_json(change, "change", "value", "ratio", "saves", "extrapolated")
            for change in answer.changes
        ],
        "unpredicted": [
            configuration._asdict() | {"reason": reason}
            for configuration, reason in answer.unpredicted.items()
        ],
        "answer": headline(answer, question.goal),
        "job_script": [*job_script(answer, question.partition)],
    }


def _to_json(source: object, *names: str) -> dict[str, Any]:
    """Return attributes of an object by name; a NamedTuple becomes a dict."""
    values = {name: getattr(source, name) for name in names}
    return {
        name: value._asdict() if hasattr(value, "_asdict") else value
        for name, value in values.items()
    }


def _best_use_content(use: BestUse) -> dict[str, Any]:
    alternatives = []
    for alternative in use.alternatives:
        paired = _pair_of(alternative)
        alternatives.append(
            paired.reference._asdict()
            | paired.ratio._asdict()
            | _to_json(paired, "verdict", "matches", "sessions")
            | {
                "uses": alternative.uses,
                "needed": MATCHES_FOR_INTERVAL,
                "stays_disturbed": bool(alternative.row["stays_disturbed"]),
            }
        )
    return use.configuration._asdict() | {
        "verdict": use.verdict,
        "closest": use.closest.label,
        "alternatives": alternatives,
    }


def _option_content(option: Option) -> dict[str, Any]:
    candidate, paired = option.candidate, option.paired
    # The seconds are from `candidate.paired`, whose reference may differ from the baseline.
    measured = candidate.paired or paired
    return {
        **candidate.configuration._asdict(),
        "nodes": candidate.setup.layout.nodes,
        "processes": candidate.setup.layout.processes,
        "cores_per_process": candidate.setup.cores,
        **_to_json(option, "seconds", "job_seconds", "amount", "ratio", "verdict", "excluded"),
        **_to_json(option, "speedup", "efficiency"),
        "matches": paired and paired.matches,
        "sessions": paired and paired.sessions,
        **_to_json(candidate, "configured_rows", "basis", "memory"),
        **_to_json(candidate, "extrapolated", "extrapolated_start"),
        "measured_ratio": measured
        and measured.ratio._asdict()
        | _to_json(measured, "matches", "verdict")
        | {"reference": str(measured.reference)},
        "predicted_ratio": candidate.predicted and candidate.predicted._asdict(),
        "contradiction": candidate.contradicts,
    }
