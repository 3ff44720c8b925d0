"""Name the best use of what is there, and what it gains.

The best use is the quickest configuration that trains the same model, set against all others that
use no more. Where no two configurations train the same model, as with weak scaling, tell how the
largest compares with its main reference. If there are only ladders, tell what their changes leave
of the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.best_use import (
    MORE_DOES_NOT_PAY,
    NOT_LEARNT,
    PAYS,
    TIED,
    UNAVAILABLE,
    Alternative,
    BestUse,
)
from escala.analysis.verdicts import DIFFERENT, FASTER, NO_VERDICT, NOT_DISTINGUISHABLE, SAME
from escala.core.readable import counted, in_words
from escala.programs.marks import BEST
from escala.report.findings import ladders
from escala.report.findings.best_use import against_main, answers, inverse
from escala.report.findings.compared import Compared, Ratio, interval, rows_of
from escala.report.findings.differences import COMPARED, over_repeats
from escala.report.findings.words import (
    Finding,
    Tables,
    joined,
    of,
    quoted,
    sentence,
    with_labels,
)
from escala.report.tables.scores import ACCURACY
from escala.report.tables.views import programs

POSITION = 10
SECTION = "answer"

#: What is compared, by `Alternative.ratio_of`.
TIMES = {"steps": "step time", "run": "time", "target": "time to the target accuracy"}
#: Names of configurations in a sentence on those that train another model.
_MOST_NAMED = 3


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Answer each task, then tell what it gains and what qualifies it."""
    found = answers(tables)
    for answer in found:
        text = sentence(first_line(answer))
        yield Finding(text, "best_use", "seconds_per_epoch", task=answer.key)
    if not found:
        yield from _without_best_use(tables)
    for answer in found:
        for text in (*_gains(answer, tables), *_qualified(answer)):
            yield Finding(sentence(text), "best_use", "seconds_per_epoch", True, answer.key)
    for text in _other_models(tables):
        yield Finding(sentence(text), "configurations", "seconds_per_epoch")


def first_line(answer: BestUse) -> str:
    """Name the best use, or say why it is not known."""
    there, rival = answer.there.in_words, answer.closest
    best, other = quoted(answer.label), quoted(rival.label)
    if answer.verdict == UNAVAILABLE:
        why = quoted(str(rival.row["reason"]))
        return f"{UNAVAILABLE}: {best} cannot be compared with {other}: {why}"
    fraction = _of_time(rival)
    if answer.verdict == NOT_LEARNT:
        return (
            f"nothing pays yet: {quoted(answer.workload)} reaches an accuracy of "
            f"{answer.learning.accuracy:.2f}, and naming the largest class for every row "
            f"reaches {answer.learning.largest_class:.2f}"
        )
    if answer.verdict == PAYS:
        return f"best use of {there}: {best}, at {fraction}"
    if answer.verdict == MORE_DOES_NOT_PAY:
        return f"more than {answer.resources.in_words} does not pay: {best} takes {fraction}"
    if answer.verdict == TIED:
        return f"the best use of {there} is not decided: {best} takes {fraction}"
    from_runs = counted(rival.ratio.matches, "paired run")
    if rival.row["stays_disturbed"]:
        from_runs = "disturbed runs"
    return f"no verdict from {from_runs}: {best} takes {fraction}"


def _of_time(rival: Alternative) -> str:
    """Return the ratio to an alternative with its interval, as `0.84 of the step time of …`."""
    time = f"{_fraction(rival.ratio)} the {TIMES[rival.ratio_of]}"
    return f"{time} of {quoted(rival.label)}{interval(rival.ratio)}"


def _fraction(ratio: Ratio) -> str:
    return "an unknown part of" if pd.isna(ratio.value) else f"{ratio.value:.2f} {of(ratio.value)}"


def _gains(answer: BestUse, tables: Tables) -> Iterator[str]:
    """Tell what the best use gains over less, what more would give, and what a whole run gains."""
    if answer.verdict in (UNAVAILABLE, NO_VERDICT):
        return
    if answer.verdict == NOT_LEARNT:
        yield f"by its times alone, {quoted(answer.label)} takes {_of_time(answer.closest)}"
        return
    fewer = answer.fewer
    if fewer and fewer != answer.closest and fewer.verdict == FASTER:
        yield (
            f"against {quoted(fewer.label)} on {fewer.resources.in_words}: "
            f"{_fraction(fewer.ratio)} the {TIMES[fewer.ratio_of]}{interval(fewer.ratio)}"
            f"{_whole_run_clause(fewer)}"
        )
    yield from _others(answer)
    if answer.closest.ratio_of == "steps":
        yield from _whole_run(answer)
    if answer.verdict == PAYS:
        yield from _scores(answer, tables)


def _others(answer: BestUse) -> Iterator[str]:
    """Compare the quickest that uses more, and that of several processes, with the best use.

    Those that the first line has named are left out.
    """
    known = [each for each in answer.alternatives if each.verdict != UNAVAILABLE]
    groups = [[each for each in known if each.uses == "more"]]
    if answer.ranks == 1:
        groups.append([each for each in known if each.ranks > 1])
    named = {answer.closest.label}
    for group in groups:
        if not group:
            continue
        quickest = max(group, key=lambda each: each.ratio.value if each.ratio.value > 0 else 0.0)
        if quickest.label in named:
            continue
        named.add(quickest.label)
        verdict = "does not pay" if quickest.verdict == FASTER else f"has {quickest.verdict}"
        if quickest.verdict == NOT_DISTINGUISHABLE:
            verdict = f"is {NOT_DISTINGUISHABLE}"
        ratio = inverse(quickest.ratio)
        yield (
            f"{quoted(quickest.label)} on {quickest.resources.in_words} {verdict}: "
            f"{_fraction(ratio)} the {TIMES[quickest.ratio_of]}{interval(ratio)}"
        )


def _whole_run_clause(other: Alternative) -> str:
    ratio = other.row["run_ratio"]
    if other.ratio_of != "steps" or pd.isna(ratio):
        return ""
    return f", and {ratio:.2f} {of(ratio)} that of a whole run"


def _whole_run(answer: BestUse) -> Iterator[str]:
    """Tell what is left of the gain in a whole run, and from which length it is decided."""
    row = answer.closest.row
    if pd.isna(row["run_ratio"]):
        return
    epochs = "" if pd.isna(row["epochs"]) else f" of {counted(int(row['epochs']), 'epoch')}"
    ratio = Ratio(*(row[f"run_ratio{end}"] for end in ("", "_low", "_high")), int(row["matches"]))
    decided = {FASTER: "", NO_VERDICT: ""}.get(row["run_verdict"], f", {row['run_verdict']}")
    yield (
        f"a whole run{epochs} takes {_fraction(ratio)} the time of a run of "
        f"{quoted(answer.closest.label)}{interval(ratio)}{decided}"
    )
    if row["run_verdict"] != FASTER and answer.verdict == PAYS:
        least = row["faster_from_epochs"]
        yield (
            "a whole run of no length is decided to take less time"
            if pd.isna(least)
            else f"from {counted(int(least), 'epoch')} on, a whole run takes less time"
        )


def _qualified(answer: BestUse) -> Iterator[str]:
    """Tell what the answer leaves open."""
    row = answer.closest.row
    too_few = answer.closest.ratio.matches < row["needed"] and not row["stays_disturbed"]
    if answer.verdict == NO_VERDICT and too_few:
        yield (
            f"the best of {in_words(int(row['configurations']))} configurations needs "
            f"{counted(int(row['needed']), 'paired run')} of each two"
        )
    failed = [each for each in answer.alternatives if each.verdict == UNAVAILABLE]
    if failed and answer.verdict != UNAVAILABLE:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        why = quoted(str(failed[0].row["reason"]))
        yield f"not compared is {quoted(failed[0].label)}{more}: {why}"


def _other_models(tables: Tables) -> Iterator[str]:
    """Name the configurations that train another model, by the reason."""
    rows = with_labels(tables["configurations"], tables).dropna(subset=["other_model"])
    for reason, same in rows.groupby("other_model", sort=False):
        named = [quoted(label) for label in same["label"][:_MOST_NAMED]]
        if len(same) > len(named):
            named.append(f"{len(same) - len(named)} more")
        train = "trains" if len(same) == 1 else "train"
        yield f"{joined(named)} {train} another model: {quoted(reason)}"


def _without_best_use(tables: Tables) -> Iterator[Finding]:
    """Compare the largest configuration of each task with its main reference."""
    rows = rows_of(against_main(tables))
    if not rows and not tables["ladder"].empty:
        for text in ladders.answers(tables):
            yield Finding(sentence(text), "ladder", "ladder")
        return
    if not rows:
        alone = len(tables["configurations"]) == 1
        why = "no configuration was trained alongside its reference"
        text = f"nothing was compared: {'there is one configuration' if alone else why}"
        yield Finding(sentence(text), "speedup", "speedup")
    tasks: dict[tuple, list[Compared]] = {}
    for row in rows:
        tasks.setdefault((row.dataset, row.workload), []).append(row)
    for same in tasks.values():
        row = max(same, key=lambda each: (each.kind != UNAVAILABLE, each.ranks, -each.reference))
        yield Finding(sentence(_with_main(row)), "speedup", "speedup")


def _with_main(row: Compared) -> str:
    subject, reference = quoted(row.label), quoted(row.reference_label)
    found, ratio = row.headline, row.epochs
    if row.kind == UNAVAILABLE:
        return f"{UNAVAILABLE}: {subject} cannot be compared with {reference}: {quoted(row.reason)}"
    text = f"{subject} takes {ratio.value:.2f} {of(ratio.value)} the time of {reference}"
    if row.is_weak:
        return (
            f"weak scaling: {text} for a row{interval(ratio)}, with an efficiency of "
            f"{row.efficiency:.2f}"
        )
    if found.verdict == NO_VERDICT:
        text = f"{found.brief}: {text}"
    return f"{text} per epoch{interval(ratio)}, and trains another model"


def _scores(answer: BestUse, tables: Tables) -> Iterator[str]:
    """Compare the scores of the best use with those of what it is set against."""
    scores = over_repeats(tables)
    for row in rows_of(with_labels(tables["speedup"], tables)):
        pair = {row.names, row.reference_names}
        if pair != {answer.names, answer.closest.names}:
            continue
        phrase = (_reported if row.workload in programs(tables) else _accuracy)(row, scores)
        if phrase:
            yield f"{quoted(row.label)} and {quoted(row.reference_label)} train to {phrase}"
            return


def _accuracy(row: Compared, scores: pd.DataFrame) -> str:
    """Return a phrase on the accuracies of both; empty without one, or with few paired runs.

    Parameters
    ----------
    scores : the result of `over_repeats`.
    """
    differences = _row_differences(row, scores)
    differences = differences[differences["score"] == ACCURACY]
    if differences.empty:
        return ""
    found = differences.iloc[0]
    if found["verdict"] == SAME:
        return f"the same accuracy within {found['bound']:g} {_in_all(found)}"
    if found["verdict"] == DIFFERENT:
        return "different accuracies"
    return "accuracies that are not distinguishable"


def _reported(row: Compared, scores: pd.DataFrame) -> str:
    """Return a phrase on the scores that a program reports, as `_accuracy` does.

    The loss, which may be that of the rows of one rank, counts if nothing else is reported; best
    values do not.
    """
    differences = _row_differences(row, scores)
    differences = differences[~differences["score"].str.startswith(BEST)]
    others = differences[differences["score"] != "loss"]
    differences = differences if others.empty else others
    if differences.empty:
        return ""
    different = differences[differences["verdict"] == DIFFERENT]
    if len(different):
        return f"different values of {quoted(different['score'].iloc[0])}"
    if (differences["verdict"] == SAME).all():
        return f"the same scores {_in_all(differences.iloc[0])}"
    return "scores that are not distinguishable"


def _in_all(found: pd.Series) -> str:
    rate = 100 * found["beyond_bound_fraction"]
    return (
        f"in all {in_words(found['matches'])} paired runs; up to {rate:.0f} % of others may differ"
    )


def _row_differences(row: Compared, scores: pd.DataFrame) -> pd.DataFrame:
    """Return the differences of the scores of a row from its reference."""
    return scores[(scores[list(COMPARED)] == [getattr(row, key) for key in COMPARED]).all(axis=1)]
