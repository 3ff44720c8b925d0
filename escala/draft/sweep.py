"""Sweep a number of a command: from which value on do more processes, or more threads, pay?

Each value is a workload of one experiment, with the same configurations.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from escala.analysis.looks import MARGIN, NO_SAVING
from escala.analysis.verdicts import FASTER, NOT_DISTINGUISHABLE, SLOWER
from escala.core.arguments import whole_number
from escala.core.errors import InputError
from escala.core.readable import align, in_words
from escala.draft.file import THREADS, Draft
from escala.experiment import Experiment
from escala.runtime.layout import Layout

#: The name of what is swept, and its values in increasing order.
Sweep = tuple[str, list[int]]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,20}")
#: Whether more processes, or threads, take less time than all references, or more than some.
PAY, PAY_NOT, OPEN = "pay", "do not pay", "not decided"
#: No run of a side of a comparison ended without an error.
FAILED = "failed"


def parse(text: str) -> Sweep:
    """Return the sweep that `rows=16,64,256` names; a type of `argparse`."""
    name, _, listed = text.partition("=")
    values = sorted({whole_number(value) for value in listed.split(",")})
    if not _NAME.fullmatch(name) or len(values) < 2:
        raise argparse.ArgumentTypeError(f"{text} does not name values, such as rows=16,64,256")
    return name, values


def vary(draft: Draft, sweep: Sweep) -> Draft:
    """Return a draft with a workload for each value, and as many times its minutes.

    A placeholder of the name takes the values; without one, an option of the command.

    Raises
    ------
    InputError : the command has neither: it would do the same work at each value.
    """
    (name, values), settings = sweep, draft.settings
    [(stem, workload)] = settings["workloads"].items()
    repeats = settings["repeats"]
    if isinstance(repeats, dict):
        repeats = repeats | {"minutes": len(values) * repeats["minutes"]}
    title = f"{settings['title'].rstrip('?')}, and from which {name} on?"
    workloads = {f"{stem}-{name}-{value}": _set(workload, name, value) for value in values}
    settings = settings | {"title": title, "repeats": repeats, "workloads": workloads}
    as_typed = draft.as_typed and vary(draft.as_typed, sweep)
    sentence = f"Each configuration is measured at {name} {', '.join(map(str, values))}."
    return replace(
        draft, settings=settings, sentences=[*draft.sentences, sentence], as_typed=as_typed
    )


def _set(workload: Mapping[str, Any], name: str, value: int) -> dict[str, Any]:
    """Return a workload whose placeholder, or whose option of its command, has a value."""
    if name == "rows" and "batch" in workload:
        return {**workload, "batch": workload["batch"] | {"rows": value}}
    if name == "epochs" and name in workload:
        return {**workload, name: value}
    option = f"{'--' if len(name) > 1 else '-'}{name}"
    # `--batch_size` and `--batch-size` are one. A quote may end the command of a shell.
    spelled = "[-_]".join(re.split("[-_]", name))
    command, changes = re.subn(
        rf"(?<!\S)(--?{spelled}(?:=|\s+))(?!-\D)[^\s'\"]+", rf"\g<1>{value}", workload["command"]
    )
    if not changes:
        where = f"{{{name}}}" if name in ("rows", "epochs") else f"{option} {value}"
        reason = f"is not in the command as {where}, so each value would do the same work"
        raise InputError("--sweep", name, reason, f"write {where} where the value belongs")
    return {**workload, "command": command}


def judge(content: Mapping[str, Any], sweep: Sweep) -> list[dict[str, Any]]:
    """Return for each value whether the most processes pay, else the threads, from an answer.

    Parameters
    ----------
    content : of `escala.draft.answer.read`.

    Returns
    -------
    What `schemas/answer.schema.yaml` describes as `sweep`.
    """
    name, values = sweep

    def size(compared: Mapping[str, Any]) -> tuple[int, bool]:
        configuration = compared["configuration"]
        ranks = Layout.parse(configuration["layout"]).ranks
        return ranks, configuration["variant"] == THREADS

    largest = max(map(size, content["comparisons"]), default=None)
    failed = [row for row in content["configurations"] if not row["runs"]]
    rows = []
    for value in values:
        compared = [
            compared
            for compared in content["comparisons"]
            if size(compared) == largest
            and compared["configuration"]["workload"].endswith(f"-{name}-{value}")
        ]
        verdicts = {comparison["verdict"] for comparison in compared}
        if verdicts == {FASTER}:
            pays = PAY
        elif SLOWER in verdicts:
            pays = PAY_NOT
        elif any(
            side.items() <= row.items()
            for comparison in compared
            for side in (comparison["configuration"], comparison["reference"])
            for row in failed
        ):
            pays = FAILED
        else:
            pays = NO_SAVING if any(map(_saves_little, compared)) else OPEN
        rows.append({"name": name, "value": value, "verdict": pays, "comparisons": compared})
    return rows


def _saves_little(compared: Mapping[str, Any]) -> bool:
    """Return whether an undecided comparison excludes that more processes save above 5 %."""
    low, _ = compared["interval_of_session"]
    return compared["verdict"] == NOT_DISTINGUISHABLE and low is not None and low >= 1 - MARGIN


def table(rows: Sequence[Mapping[str, Any]], experiment: Experiment) -> Iterator[str]:
    """Yield the lines of a table on the result of `judge`: ratios of times, with intervals."""
    words = f"{_largest(rows, experiment)}, of the time of"
    lines = [[rows[0]["name"], words, "ratio", "interval", "verdict"]]
    for row in rows:
        for compared in row["comparisons"]:
            ends = [compared["ratio"], *compared["interval"]]
            ratio, low, high = ("-" if end is None else f"{end:.2f}" for end in ends)
            words = _name(compared["reference"], experiment)
            lines.append([row["value"], words, ratio, f"{low} to {high}", row["verdict"]])
        if not row["comparisons"]:
            lines.append([row["value"], "-", "-", "-", row["verdict"]])
    yield from align(lines)


def sentence(rows: Sequence[Mapping[str, Any]], experiment: Experiment) -> str:
    """Return from which value on more processes pay, from the result of `judge`."""
    name = rows[0]["name"]
    unit = name if name in ("rows", "epochs") else f"of {name}"
    pay, pay_not, failed, little, undecided = (
        [row["value"] for row in rows if row["verdict"] == verdict]
        for verdict in (PAY, PAY_NOT, FAILED, NO_SAVING, OPEN)
    )
    alike = [
        row["value"]
        for row in rows
        if row["verdict"] == OPEN and any(compared["futile"] for compared in row["comparisons"])
    ]
    if pay and pay_not and pay_not[-1] < pay[0]:
        how = f"begin to pay between {pay_not[-1]} and {pay[0]} {unit}"
    elif pay and pay_not and pay[-1] < pay_not[0]:
        how = f"no longer pay between {pay[-1]} and {pay_not[0]} {unit}"
    elif pay and pay_not:
        how = f"pay at {_list(pay)} {unit}, and not at {_list(pay_not)}"
    elif pay:
        how = f"pay at {_list(pay)} {unit}, and fewer may pay"
    elif pay_not:
        how = f"do not pay at {_list(pay_not)} {unit}, and more may pay"
    else:
        how = "may pay or not" if undecided or failed else "do not pay"
    by_time = isinstance(experiment.settings["repeats"], dict)
    more = "--minutes N gives more time" if by_time else "more --repeats may be enough"
    text = f"{_largest(rows, experiment)} {how}"
    for values, what, why in (
        (little, NO_SAVING, ""),
        (failed, FAILED, f", and results/{experiment.name}/summary.md has the reason"),
        (alike, OPEN, ", where times differ no more than those of sessions"),
        (sorted({*undecided} - {*alike}), OPEN, f", for which {more}"),
    ):
        text += f"; {what} at {_list(values)} {unit}{why}" if values else ""
    return f"{text[0].upper()}{text[1:]}."


def _largest(rows: Sequence[Mapping[str, Any]], experiment: Experiment) -> str:
    """Return words for the configuration that is compared, from the result of `judge`."""
    compared = next((compared for row in rows for compared in row["comparisons"]), None)
    return _name(compared["configuration"], experiment) if compared else "more processes"


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _name(configuration: Mapping[str, str], experiment: Experiment) -> str:
    """Return words for a configuration: `two processes`, `one process with two threads`."""
    layout = Layout.parse(configuration["layout"])
    if layout.ranks > 1:
        return f"{in_words(layout.ranks)} processes"
    variant = experiment.settings["variants"][configuration["variant"]]
    cores = variant["cores_per_process"]
    return f"{in_words(cores)} threads" if cores > 1 else "one process"
