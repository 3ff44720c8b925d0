"""Name the best use of the resources, its gain, and what is known of programs and engines.

The best use is the quickest configuration that trains the same model. It is compared with all
others that use no more resources. With weak scaling, no two configurations train the same model;
then the largest configuration is compared with its main reference. An experiment with only ladders
has another answer: the part of the time that remains after their changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
from escala.analysis.comparable import SAME_ROWS
from escala.analysis.looks import judge_session
from escala.analysis.statistics import MATCHES_FOR_INTERVAL
from escala.analysis.verdicts import (
    DIFFERENT,
    FASTER,
    NO_VERDICT,
    NOT_DISTINGUISHABLE,
    SAME,
    SLOWER,
)
from escala.core.engines import ENGINES
from escala.core.readable import in_words, with_noun
from escala.programs.marks import BEST, HOOK, OUTPUT, SEEN, WHOLE
from escala.report.findings.context import Report, configuration_of, headline, inverse, ratio_of
from escala.report.findings.scores import COMPARED, over_repeats
from escala.report.findings.why import ladder_answers
from escala.report.findings.words import Comparison, Finding, Names, join_words, of_or_times, quote
from escala.report.tables.base import STRATEGY
from escala.report.tables.scores import ACCURACY
from escala.report.tables.views import placeholders_of, programs
from escala.strategies import STRATEGIES

#: What is compared, in words, by `Alternative.ratio_of`.
TIMES = {
    "steps": "step time",
    "epoch": "training time of an epoch",
    "run": "time",
    "target": "time to the target accuracy",
}
#: The verb for an alternative and what follows the verb, by the verdict on the best use.
_OF_ALTERNATIVE = {
    FASTER: ("does", "not pay"),
    SLOWER: ("took", "less time"),
    NOT_DISTINGUISHABLE: ("is", f"{NOT_DISTINGUISHABLE} from it"),
    NO_VERDICT: ("has", NO_VERDICT),
}
#: The most names of configurations in a sentence on other models.
_MOST_NAMED = 3
#: How the epochs of a program are known, by `known_by` of run.json.
HOW_TIMED = {
    HOOK: "its epochs are known by its hook",
    SEEN: "its steps are seen as it makes them",
    OUTPUT: "its epochs are known by its output",
    WHOLE: "it reports no epochs, so its times are of whole runs with their start-up",
}
#: What a program decides on if its command names none of these placeholders.
_VARIED = {"batch": ("rows", "rows_of_rank"), "epochs": ("epochs",), "seed": ("seed",)}


#: A clause with its comparisons.
_Clause = tuple[str, tuple[Comparison, ...]]


def best_uses(report: Report) -> Iterator[Finding]:
    """Name the best use of each task, its gain, and what limits the answer."""
    evidence = "best_use", "seconds_per_epoch"
    for answer in report.answers:
        line, rival = first_line(answer, report.names), answer.closest
        compares = (_compare_best_use(answer, rival, report.names),)
        if answer.verdict == NOT_LEARNT:
            compares = ()
        if report.is_of_session and answer.verdict == TIED:
            line, compares = next(_tell_session(answer, report), (line, compares))
        yield Finding(line, *evidence, task=answer.key, compares=compares)
    for answer in report.answers:
        for text, compares in _details(answer, report):
            yield Finding(text, *evidence, first=True, task=answer.key, compares=compares)


def first_line(answer: BestUse, names: Names) -> str:
    """Return the clause that names the best use, or says why it is not known."""
    resources, rival = answer.available.in_words, answer.closest
    best, other = names(answer.label), names(rival.label)
    if answer.verdict == UNAVAILABLE:
        why = quote(str(rival.row["reason"]))
        return f"{UNAVAILABLE}: {best} cannot be compared with {other}: {why}"
    if answer.verdict == NOT_LEARNT:
        return (
            f"nothing pays yet: {quote(answer.workload)} reaches an accuracy of "
            f"{answer.learning.accuracy:.2f}, and naming the largest class for every row "
            f"reaches {answer.learning.largest_class:.2f}"
        )
    part_of_time = _fraction_of_time(rival, names)
    if answer.verdict == PAYS:
        return f"best use of {resources}: {best}, at {part_of_time}"
    takes = f"{names.subject(answer.label, 'takes')} {part_of_time}"
    if answer.verdict == MORE_DOES_NOT_PAY:
        return f"more than {answer.resources.in_words} does not pay: {takes}"
    if answer.verdict == TIED:
        return f"the best use of {resources} is not decided: {takes}"
    from_runs = with_noun(rival.ratio.matches, "paired run")
    if rival.row["stays_disturbed"]:
        from_runs = "disturbed runs"
    return f"no verdict from {from_runs}: {takes}"


def _fraction_of_time(rival: Alternative, names: Names) -> str:
    """Return the best use's time as a fraction of the rival's time, in words."""
    return names.fraction(rival.ratio, f"{TIMES[rival.ratio_of]} of {names(rival.label)}")


def _compare_best_use(answer: BestUse, other: Alternative, names: Names) -> Comparison:
    """Return the comparison of the best use with an alternative."""
    return names.comparison(answer.label, other.label, TIMES[other.ratio_of], other.ratio)


def _details(answer: BestUse, report: Report) -> Iterator[_Clause]:
    """Tell the gain over fewer resources, the gain of more resources, and what is not decided."""
    names, fewer, rival = report.names, answer.fewer, answer.closest
    if answer.verdict == NOT_LEARNT:
        takes = names.subject(answer.label, "takes")
        text = f"by its times alone, {takes} {_fraction_of_time(rival, names)}"
        yield text, (_compare_best_use(answer, rival, names),)
    is_decided = answer.verdict in (PAYS, MORE_DOES_NOT_PAY, TIED)
    if is_decided and fewer and fewer != rival and fewer.verdict == FASTER:
        whole, ratio = "", fewer.row["run_ratio"]
        compares = [_compare_best_use(answer, fewer, names)]
        if fewer.ratio_of in ("steps", "epoch") and not pd.isna(ratio):
            whole = f", and {ratio:.2f} {of_or_times(ratio)} the time of a whole run"
            interval = ratio_of(fewer.row, "run_ratio")
            compares.append(names.comparison(answer.label, fewer.label, "whole run", interval))
        text = (
            f"against {names(fewer.label)} on {fewer.resources.in_words}: "
            f"{names.fraction(fewer.ratio, TIMES[fewer.ratio_of])}{whole}"
        )
        yield text, tuple(compares)
    yield from _compare_others(answer, names)
    if answer.verdict == TIED:
        sentences = [*_tell_session(answer, report)]
        if sentences and report.is_of_session:  # It is the first line already.
            compares = (_compare_best_use(answer, rival, names),)
            sentences = [(first_line(answer, names), compares)]
        yield from sentences
    if is_decided:
        yield from _compare_whole_runs(answer, names)
    if answer.verdict == PAYS:
        yield from _compare_scores(answer, report)
    too_few = rival.ratio.matches < MATCHES_FOR_INTERVAL and not rival.row["stays_disturbed"]
    if answer.verdict == NO_VERDICT and too_few:
        text = (
            f"the best of {in_words(int(rival.row['configurations']))} configurations needs "
            f"{with_noun(MATCHES_FOR_INTERVAL, 'paired run')} of each two"
        )
        yield text, ()
    failed = [other for other in answer.alternatives if other.verdict == UNAVAILABLE]
    if failed and answer.verdict != UNAVAILABLE:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        why = quote(str(failed[0].row["reason"]))
        yield f"not compared is {names(failed[0].label)}{more}: {why}", ()


def _tell_session(answer: BestUse, report: Report) -> Iterator[_Clause]:
    """Tell a difference that this session shows, where that of the next one is not decided."""
    pair = {answer.names, answer.closest.names}
    for names, row in report.against_main.items():
        compared = {names, configuration_of(row, "reference_")}
        if compared == pair and judge_session(row._asdict()) in (FASTER, SLOWER):
            what, ratio = TIMES[answer.closest.ratio_of], ratio_of(row, "session_ratio")
            fraction = report.names.fraction(
                ratio, f"{what} of {report.names(row.reference_label)}"
            )
            takes = report.names.subject(row.label, "takes")
            text = f"in this session alone, {takes} {fraction}: another session may not show it"
            of = f"{what} in this session alone"
            yield text, (report.names.comparison(row.label, row.reference_label, of, ratio),)


def _compare_whole_runs(answer: BestUse, names: Names) -> Iterator[_Clause]:
    """Compare the times of whole runs, if the answer compares times of steps."""
    rival, row = answer.closest, answer.closest.row
    if rival.ratio_of not in ("steps", "epoch") or pd.isna(row["run_ratio"]):
        return
    verdict, epochs = row["run_verdict"], row["epochs"]
    of_epochs = "" if pd.isna(epochs) else f" of {with_noun(int(epochs), 'epoch')}"
    decided = "" if verdict in (FASTER, NO_VERDICT) else f", {verdict}"
    time = f"time of a run of {names(rival.label)}"
    ratio = ratio_of(row, "run_ratio")
    compares = names.comparison(answer.label, rival.label, f"whole run{of_epochs}", ratio)
    yield f"a whole run{of_epochs} takes {names.fraction(ratio, time)}{decided}", (compares,)
    if verdict != FASTER and answer.verdict == PAYS:
        least = row["faster_from_epochs"]
        if pd.isna(least):
            yield "for no number of epochs is a whole run decided to take less time", ()
        else:
            yield f"from {with_noun(int(least), 'epoch')} on, a whole run takes less time", ()


def _compare_others(answer: BestUse, names: Names) -> Iterator[_Clause]:
    """Compare the `others` of a best use with it."""
    for other in answer.others:
        verb, verdict = _OF_ALTERNATIVE[other.verdict]
        subject = names.subject(other.label, verb, f" on {other.resources.in_words}")
        of, ratio = TIMES[other.ratio_of], inverse(other.ratio)
        compares = Comparison(f"{subject} {verdict}, against {names(answer.label)}", of, ratio)
        yield f"{subject} {verdict}: {names.fraction(ratio, of)}", (compares,)


def without_best_use(report: Report) -> Iterator[Finding]:
    """Compare the largest configuration of each task with its main reference.

    Without any comparison, tell the time that remains after the changes of ladders.
    """
    if report.answers:
        return
    names, evidence, tasks = report.names, ("speedup", "speedup"), dict[tuple, list]()
    if not report.against_main:
        if not report.tables["ladder"].empty:
            yield from ladder_answers(report)
            return
        alone = len(report.tables["configurations"]) == 1
        why = "no configuration was trained alongside its reference"
        why = "there is one configuration" if alone else why
        yield Finding(f"nothing was compared: {why}", *evidence)
    for row in report.against_main.values():
        tasks.setdefault((row.dataset, row.workload), []).append(row)
    for rows in tasks.values():
        row = max(rows, key=lambda candidate: (candidate.kind != UNAVAILABLE, candidate.ranks))
        takes, reference = names.subject(row.label, "takes"), names(row.reference_label)
        compares = (names.comparison(row.label, row.reference_label, "time", ratio_of(row)),)
        if row.kind == UNAVAILABLE:
            text = f"{UNAVAILABLE}: {names(row.label)} cannot be compared with {reference}: "
            text += quote(row.reason)
        elif row.work != 1:
            fraction = names.fraction(ratio_of(row), f"time of {reference} for a row")
            text = f"weak scaling: {takes} {fraction}, with an efficiency of {row.efficiency:.2f}"
        else:
            decides = headline(row)
            verdict = f"{decides.brief}: " * (decides.verdict == NO_VERDICT)
            time = names.fraction(ratio_of(row), f"time of {reference} per epoch")
            text = f"{verdict}{takes} {time}, and trains another model"
        yield Finding(text, *evidence, compares=compares)


def other_models(report: Report) -> Iterator[Finding]:
    """Name the configurations that train another model, by the reason."""
    names, table = report.names, report.table("configurations").dropna(subset=["other_model"])
    for reason, rows in table.groupby("other_model", sort=False):
        listed = [names(label) for label in rows["label"][:_MOST_NAMED]]
        if len(rows) > len(listed):
            listed.append(f"{len(rows) - len(listed)} more")
        subject = f"{join_words(listed)} train"
        if len(rows) == 1:
            subject = names.subject(rows["label"].iloc[0], "trains")
        text = f"{subject} another model: {quote(reason)}"
        yield Finding(text, "configurations", "seconds_per_epoch")


def _compare_scores(answer: BestUse, report: Report) -> Iterator[_Clause]:
    """Compare the scores of the best use with the scores of the closest alternative.

    The score of a neural network is its accuracy. The scores of a program are its reported scores,
    without best values. A program's loss may be of one rank's rows, so it only counts if the
    program reports no other score.
    """
    scores, names = over_repeats(report), report.names
    for row in report.comparisons.itertuples():
        pair = {configuration_of(row), configuration_of(row, "reference_")}
        if pair != {answer.names, answer.closest.names}:
            continue
        is_same = scores[list(COMPARED)] == [getattr(row, key) for key in COMPARED]
        rows, is_program = scores[is_same.all(axis=1)], row.workload in programs(report.tables)
        if is_program:
            rows = rows[~rows["score"].str.startswith(BEST)]
            further = rows[rows["score"] != "loss"]
            rows = rows if further.empty else further
        else:
            rows = rows[rows["score"] == ACCURACY]
        if rows.empty:
            continue
        first, different = rows.iloc[0], rows[rows["verdict"] == DIFFERENT]
        phrase = f"{'scores' if is_program else 'accuracies'} that are not distinguishable"
        if len(different):
            name = quote(different["score"].iloc[0])
            phrase = f"different values of {name}" if is_program else "different accuracies"
        elif (rows["verdict"] == SAME).all():
            what = "scores" if is_program else f"accuracy within {first['bound']:g}"
            phrase = (
                f"the same {what} in all {in_words(first['matches'])} paired runs; up to "
                f"{100 * first['beyond_bound_fraction']:.0f} % of other pairs may differ"
            )
        yield f"{names(row.label)} and {names(row.reference_label)} train to {phrase}", ()
        return


def describe_programs(report: Report) -> Iterator[Finding]:
    """Describe each program: how its times are known, what is unknown, and what it decides."""
    runs = report.tables["runs"][report.tables["runs"]["current"]]
    answering = [answer.workload for answer in report.answers[:1]]
    for workload in programs(report.tables):
        ok = runs[(runs["workload"] == workload) & (runs["status"] == "ok")]
        if ok.empty:
            continue
        for text, first in _describe_program(workload, ok, report.tables):
            yield Finding(text, "runs", first=first and workload in answering)
        if ok["ranks"].max() > 1:
            yield Finding(_compare_rows(workload, report), "runs")


def _describe_program(
    workload: str, ok: pd.DataFrame, tables: Mapping[str, pd.DataFrame]
) -> Iterator[tuple[str, bool]]:
    """Yield clauses on what is known and unknown of a program, each with `Finding.first`."""
    ways = [clause for known_by, clause in HOW_TIMED.items() if (ok["known_by"] == known_by).any()]
    without_first = ", without the first" if ok["first_epoch_seconds"].notna().any() else ""
    yield f"{quote(workload)} is a program, run as it is: {join_words(ways)}{without_first}", False
    has_no_rows, has_no_steps = (
        ok[name].isna().any() for name in ("samples_per_second", "step_median_seconds")
    )
    has_parts, has_scores = (
        (tables[name].dropna(subset=column)["workload"] == workload).any()
        for name, column in (("attribution", "part"), ("scores", "score"))
    )
    unknown = [
        "whether its processes end with the same weights",
        *["rows of an epoch"] * bool(has_no_rows),
        *["time and parts of a step" if has_no_steps else "parts of a step"] * (not has_parts),
        *["scores"] * (not has_scores),
    ]
    yield f"not known of {quote(workload)}: {join_words(unknown)}", True
    if WHOLE in set(ok["known_by"]):
        yield f"the time of {quote(workload)} to start, for example to import, is not known", True
    named = placeholders_of(ok)
    decides = [what for what, needed in _VARIED.items() if named.isdisjoint(needed)]
    if decides:
        missing = join_words([f"`{{{_VARIED[what][0]}}}`" for what in decides])
        does_not_name = "names none of" if len(decides) > 1 else "does not name"
        text = f"{quote(workload)} decides on its {join_words(decides)}"
        yield f"{text}: its command {does_not_name} {missing}", False


def _compare_rows(workload: str, report: Report) -> str:
    """Compare the rows of an epoch of one process with those of several processes, if known."""
    runs = report.table("runs")
    runs = runs[(runs["workload"] == workload) & (runs["status"] == "ok")]
    # The table `epochs` holds the rows of a window of steps, and not of the whole epoch.
    of_epoch = (runs["samples_per_second"] * runs["train_seconds_per_epoch"])[runs["current"]]
    rows = of_epoch.groupby(runs["label"], sort=False).median().dropna()
    if len(rows) < runs["label"].nunique() or rows.empty:
        return (
            f"whether several processes divide the work of {quote(workload)}, or each do all of "
            "it, is unavailable"
        )
    least, most = rows.idxmin(), rows.idxmax()
    if rows[most] > (1 + SAME_ROWS) * rows[least]:
        return (
            f"not the same work: an epoch of {report.names(most)} has {rows[most]:.0f} rows, and "
            f"one of {report.names(least)} {rows[least]:.0f}"
        )
    return f"an epoch of {quote(workload)} has {rows[most]:.0f} rows, in every configuration"


def engines(report: Report) -> Iterator[Finding]:
    """Compare each best use with the quickest configuration of every other engine."""
    names = report.names
    for answer in report.answers:
        engine = _title_of_engine(answer.names)
        if answer.workload in programs(report.tables) or engine is None:
            continue
        quickest: dict[str, Alternative] = {}
        known = [other for other in answer.alternatives if other.verdict != UNAVAILABLE]
        for other in sorted(known, key=lambda other: -other.ratio.value):
            other_engine = _title_of_engine(other.names)
            if other_engine not in (None, engine):
                quickest.setdefault(other_engine, other)
        for other_engine, other in quickest.items():
            verdict = "" if other.verdict == FASTER else f"{other.verdict}: "
            one, two = f"{engine} ({names(answer.label)})", f"{other_engine} ({names(other.label)})"
            text = f"{verdict}{one} takes {names.fraction(other.ratio, f'time of {two}')}"
            compares = (Comparison(f"{one} against {two}", TIMES[other.ratio_of], other.ratio),)
            yield Finding(text, "best_use", "speedup", task=answer.key, compares=compares)


def _title_of_engine(names: tuple) -> str | None:
    """Return the title of a configuration's engine; None if the strategy has no engine.

    None also for a strategy that no longer exists, in older results.
    """
    strategy = STRATEGIES.get(names[STRATEGY])
    if strategy is None or not strategy.engine:
        return None
    return ENGINES[strategy.engine.partition(".")[0]].title
