"""Tell what the best use costs in core time and energy, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.best_use import NOT_LEARNT, PAYS, TIED, UNAVAILABLE, BestUse
from escala.analysis.statistics import MATCHES_FOR_INTERVAL
from escala.analysis.verdicts import FASTER, NO_VERDICT, SLOWER, Ratio
from escala.core.readable import with_noun
from escala.report.findings.context import Report, configuration_of, ratio_of
from escala.report.findings.runs import retry_phrase, without_result
from escala.report.findings.sure import runs_for_times, runs_ok
from escala.report.findings.words import Finding, Names, among, join_words, quote, with_article
from escala.report.tables.probes import MODEL
from escala.report.tables.views import is_among, names_of_rows, programs, unit

_SECONDS_PER_HOUR = 3600
_PREDICTIONS = "docs/how-to/predict-times.md"


def core_time(report: Report) -> Iterator[Finding]:
    """Compare the core time of a best use with the quickest configuration on fewer resources."""
    for answer in report.answers:
        fewer = answer.fewer
        if fewer is None or fewer.ratio_of == "target":
            continue
        cores, other_cores = answer.resources.cores, fewer.resources.cores
        core_times = Ratio(
            *(cores / other_cores * value for value in fewer.ratio[:3]), fewer.ratio.matches
        )
        one = with_article(unit(report.tables, answer.workload))
        best, other = report.names(answer.label), report.names(fewer.label)
        what = f"core-seconds (cores × seconds) of {one} of {other}"
        texts = [f"{one} of {best} takes {report.names.fraction(core_times, what)}"]
        if not pd.isna(fewer.row["run_seconds"]):
            hours = cores * fewer.row["run_seconds"] / _SECONDS_PER_HOUR
            other_hours = other_cores * fewer.row["alternative_run_seconds"] / _SECONDS_PER_HOUR
            texts.append(
                f"a whole run of {best} takes {hours:.2g} core-hours, and a run of {other} "
                f"{other_hours:.2g}"
            )
        yield from (Finding(text, "best_use", "speedup") for text in texts)


def energy(report: Report) -> Iterator[Finding]:
    """Compare the least energy of an epoch with the main reference's, or say why it is unknown."""
    tables, configurations = report.tables, report.tables["configurations"]
    of_other_models = {*names_of_rows(configurations[configurations["other_model"].notna()])}
    table = report.table("energy")
    table = table[(table["basis"] == "all devices") & ~is_among(table, of_other_models)]
    for (dataset, workload), rows in table.groupby(["dataset", "workload"], sort=False):
        known = rows[rows["kind"] != "unavailable"]
        compared = [
            row for row in known[known["matches"] > 0].itertuples()
            if configuration_of(row) != configuration_of(row, "reference_")
        ]  # fmt: skip
        if known.empty:
            label, reason = report.names(rows["label"].iloc[0]), quote(rows["reason"].iloc[0])
            text, compares = f"the energy of {label} is unavailable: {reason}", ()
        elif compared:
            row = min(compared, key=lambda row: row.energy_ratio)
            one = with_article(unit(tables, workload))
            ratio, verdict = ratio_of(row, "energy_ratio"), f"{row.verdict}: "
            if row.verdict == NO_VERDICT:
                verdict = f"no verdict from {with_noun(ratio.matches, 'paired run')}: "
            elif row.verdict in (FASTER, SLOWER):
                verdict = ""
            verb = "takes" if row.kind == "measured" else "is estimated to take"
            model = " by the stated power model" if row.source == MODEL else ""
            of_reference = f"energy of {one} of {report.names(row.reference_label)}{model}"
            takes = f"{verb} {report.names.fraction(ratio, of_reference)}"
            text = f"{verdict}{one} of {report.names(row.label)} {takes}"
            labels = row.label, row.reference_label
            compares = (report.names.comparison(*labels, "energy", ratio),)
        else:
            continue
        yield Finding(text, "energy", task=f"{dataset} {workload} ", compares=compares)


def advice(report: Report) -> Iterator[Finding]:
    """Advise on each task, then say how to predict configurations without a run."""
    for answer in report.answers:
        texts = []
        if not (report.is_of_session and answer.verdict == TIED):
            texts.append(_what_to_use(answer, report.names))
        if answer.verdict == PAYS and not answer.resources.gpus:
            # The lower end of the best use's core time divided by the rival's, by rival.
            least_ratios = {
                rival.label: answer.resources.cores / rival.resources.cores * rival.ratio.low
                for rival in answer.rivals
                if rival.ratio_of != "target" and rival.uses == "less"
            }
            thriftiest = max(least_ratios, key=least_ratios.__getitem__, default=None)
            if thriftiest and least_ratios[thriftiest] > 1:
                texts.append(f"to save core-hours, train with {report.names(thriftiest)}")
        texts.append(_how_to_decide(answer, report))
        yield from (Finding(text, "best_use", "speedup") for text in texts if text)
    modelled = {answer.workload for answer in report.answers} - set(programs(report.tables))
    if modelled and report.tables["predictions"].empty:
        yield Finding(
            "to predict layouts and networks that were not run, request the target `predictions`, "
            f"as in `{_PREDICTIONS}`",
            "predictions",
        )


def _what_to_use(answer: BestUse, names: Names) -> str:
    """Return which configuration to train with; empty without a decision."""
    if answer.verdict == NOT_LEARNT:
        return f"find settings with which {quote(answer.workload)} learns, then measure again"
    if answer.advised is None:
        return ""
    if answer.verdict != TIED:
        row, from_epochs = answer.closest.row, ""
        # This number of epochs is known if the times are of steps.
        if pd.notna(row["faster_from_epochs"]) and row["run_verdict"] != FASTER:
            from_epochs = f" for {with_noun(int(row['faster_from_epochs']), 'epoch')} or more"
        return f"train with {names(answer.label)}{from_epochs}"
    if answer.advised == answer.names and answer.equals:
        either = join_words(map(names, [answer.label, *answer.equals]))
        return f"train with any of {either}: their times cannot be told apart"
    return f"train with {names(answer.thriftiest)}: more resources were not found to save time"


def _how_to_decide(answer: BestUse, report: Report) -> str:
    """Return how to decide an open answer; empty for a decided answer."""
    rival, label = answer.closest, report.names(answer.label)
    has_failed = not answer.evidence.isdisjoint(names_of_rows(without_result(report)))
    retry = retry_phrase(report.name) if has_failed else ""
    if answer.verdict == UNAVAILABLE:
        remedy = f"remove what prevented the comparison, and {retry or 'repeat the call'}"
        return f"to compare {label} with {report.names(rival.label)}, {remedy}"
    if answer.verdict not in (TIED, NO_VERDICT):
        return ""
    matches = rival.ratio.matches
    disturbed = among(runs_for_times(report), answer.evidence)["disturbed"].fillna(False).any()
    if matches >= MATCHES_FOR_INTERVAL and (rival.row["stays_disturbed"] or disturbed):
        return (
            f"leave the machine idle and measure {label} again: `--again` in the call of `escala`, "
            "or `--forcerun measure` in that of `snakemake`"
        )
    looks, to_decide = report.tables["looks"], rival.row["matches_to_decide"]
    if len(looks) and looks["goes_on"].iloc[-1] and pd.isna(rival.row["futile"]):
        needs = f"; at this ratio, one takes about {to_decide} paired runs"
        goes_on = f"for a verdict on {label}, repeat the call, which goes on"
        # A ratio of few paired runs foretells nothing.
        is_known = pd.notna(to_decide) and matches >= MATCHES_FOR_INTERVAL
        return goes_on + needs * is_known
    if answer.verdict == NO_VERDICT:
        if retry:
            return f"for a verdict on {label}, {retry}"
        # Resumed runs are never paired.
        repeats = MATCHES_FOR_INTERVAL + max(0, runs_ok(report).get(answer.names, 0) - matches)
        return f"for a verdict on {label}, set `repeats` to {repeats} or more, and repeat the call"
    if rival.row["over_sessions"]:
        return f"for a narrower interval of {label}, measure in more sessions, hours apart"
    return (
        "to tell them apart, measure in three or more sessions, hours apart: the interval of one "
        "session is widened by how sessions differ"
    )
