"""Tell where time goes: in a step, over the changes of a ladder, outside steps, over networks."""

from __future__ import annotations

import math
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import pandas as pd

from escala.analysis.attribution import OFF_CORE, OVERLAP, WHOLE
from escala.analysis.best_use import (
    MORE_DOES_NOT_PAY,
    PAYS,
    UNAVAILABLE,
    Alternative,
    BestUse,
)
from escala.analysis.statistics import MATCHES_FOR_INTERVAL
from escala.analysis.traces import spans
from escala.analysis.traces.spans import SOURCE as TRACES
from escala.analysis.verdicts import FASTER, NOT_DISTINGUISHABLE, Ratio
from escala.core.engines import ENGINES
from escala.core.environment import call
from escala.core.readable import in_words, with_interval, with_noun
from escala.experiment.runs import MAIN
from escala.probes.clocks import Clocks
from escala.programs.marks import HOOK, SEEN
from escala.report.findings.context import Report, configuration_of, ratio_of
from escala.report.findings.words import (
    Comparison,
    Finding,
    Names,
    among,
    of_or_times,
    quote,
    significant,
    with_article,
)
from escala.report.tables.base import STRATEGY
from escala.report.tables.efficiencies import CORE_TIME
from escala.report.tables.series import PRODUCT, RUNG, TOLERANCE
from escala.report.tables.views import any_ok, names_of_rows, programs, unit, whole_runs
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES

#: Runs with clocks explain a difference between timing runs only if they show the same difference
#: within this factor. On two idle cores of a virtual machine seven equal runs differed by up to
#: 1.33.
AGREES = 2.0
#: The kernel's fraction of the core time is named if it is at least this.
KERNEL_FRACTION = 0.05
#: The wait for the next batch is named if it is at least this part of a step.
INPUT_FRACTION = 0.05
#: With at least this many page faults in a second of core time, the kernel's time is attributed to
#: page faults. A page fault took 3 to 6 µs on virtual machines, so 10 000 of them take 3 to 6 % of
#: the time. With fewer page faults, the kernel may spend its time on waiting for other ranks.
FAULTS_PER_SECOND = 10_000
#: A rest of a training, after its start-up and outside its steps, is named from this fraction on.
REST_FRACTION = 0.2
#: From this ratio of core times for the same work on, what may cause it is named.
MORE_CORE_TIME = 1.1
#: At most these values of the load balance and of the communication efficiency are named.
UNEQUAL, WAITING = 0.95, 0.9
#: Commands whose processes wait actively for each other.
_LAUNCHERS_OF_MPI = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "horovodrun")
#: The variants of programs that `escala try --apply` adds: what they keep or add.
MEMORY, LOADER = "memory", "loader"
#: A line of the shell after which processes keep freed memory.
KEEP_MEMORY = "export " + " ".join(
    f"{name}={value}"
    for name, value in ChainMap(*(engine.keep_memory for engine in ENGINES.values())).items()
)
#: The most changes of a ladder that are named.
RUNGS_NAMED = 3

_CLOCKS, _TRACE = "clocks: {enabled: true}", "torch-trace: {enabled: true}"
_PART_NAMES = {
    "input": "on input",
    "dispatch": "entering and leaving the step",
    "compute": "computing",
    "optimiser": "in the optimiser",
    OFF_CORE: "off the core",
    "skew": "waiting for the slowest process",
    "transfer": "in transfer and reduction",
    "copies": "copying to and from buffers",
    "negotiation": "in negotiation and cycles",
}
#: What runs do outside their steps, with the columns of `configurations` for the time.
_ACTIVITIES = {
    "starting up": ("startup",),
    "compiling in the first steps": ("first_step", "first_prediction"),
    "evaluating": ("evaluation",),
    "writing checkpoints": ("checkpoint",),
    "loading, building and saving": ("loading", "build", "broadcast", "averaging", "save"),
}
_DIFFERENCE = ["difference_seconds", "difference_low_seconds", "difference_high_seconds"]


def steps(report: Report) -> Iterator[Finding]:
    """Describe how the time of a step of rank 0 is divided, if clocks or a trace tell it.

    Before, explain each answer without them by its core time, or else by its waits for input. Say
    how to measure the parts of its steps; without an explanation, also why that is impossible.
    """
    names, runs = report.names, report.tables["runs"]
    measured = set(names_of_rows(report.tables["attribution"].dropna(subset=["part"])))
    explained = set(report.tables["ladder"]["workload"])
    for answer in report.answers:
        is_explained = answer.names in measured or answer.workload in explained
        if answer.verdict == UNAVAILABLE or is_explained:
            continue
        pairs = [
            (answer, answer.fewer or answer.closest),
            *((use, answer) for use in answer.others),
        ]
        told = chain.from_iterable(_compare_core_time(report, *pair) for pair in pairs)
        reasons = [*dict.fromkeys(told)] or [*_compare_waits(report, *pairs[0])]
        yield from reasons
        what = f"where the time of {names(answer.label)} goes"
        if answer.verdict in (PAYS, MORE_DOES_NOT_PAY):
            takes = names.subject(answer.label, "takes")
            what = f"why {takes} less time than {names(answer.closest.label)}"
        remedy, why = f"add `{_CLOCKS}` to the experiment, then call `{call('run -e FILE')}`", None
        strategy = STRATEGIES.get(answer.names[STRATEGY])
        failed = among(report.tables["attribution"], {answer.names})["reason"].dropna()
        if not failed.empty:
            remedy, why = None, f"the instrumented run has no parts: {quote(failed.iloc[0])}"
        elif answer.workload in programs(report.tables):
            remedy, why = None, "parts of a program's step are not known"
            known_by = runs.loc[runs["workload"] == answer.workload, "known_by"]
            if known_by.isin([HOOK, SEEN]).any():
                why, remedy = None, f"use `escala try --why`, or `{_TRACE}` in the experiment"
        elif strategy and not strategy.waits():
            remedy, why = None, "its processes make no steps together"
        elif strategy and not strategy.records_for(Clocks.name):
            remedy, why = None, "its engine does not record when the parts of a step begin and end"
        if reasons and remedy:
            one = names(answer.label)
            yield Finding(f"to see the parts of a step of {one}, {remedy}", "attribution")
        elif not (reasons and failed.empty):
            how = "; ".join(filter(None, (why, remedy and f"to see it, {remedy}")))
            yield Finding(f"not measured: {what}; {how}", "attribution")
    verdicts = {
        (answer.label, other.label): other.verdict
        for answer in report.answers
        for other in answer.alternatives
    }
    for label, parts in parts_of_steps(report):
        for text in _describe(label, parts, verdicts, names):
            yield Finding(text, "attribution", "attribution")


def _compare_core_time(
    report: Report, one: BestUse | Alternative, other: BestUse | Alternative
) -> Iterator[Finding]:
    """Describe how busy the cores of two uses are, and their core time for the same work.

    The larger loss comes first. Nothing is described of processes that may wait actively.
    """
    table = report.table("efficiencies").dropna(subset=["parallel_efficiency"])
    started = report.tables["runs"].dropna(subset="command").itertuples()
    waiting = {
        configuration_of(run)
        for run in started
        if any(Path(word).name in _LAUNCHERS_OF_MPI for word in run.command.split())
    }
    rows = {
        configuration_of(row): row
        for row in table[table["source"] == CORE_TIME].itertuples()
        if configuration_of(row) not in waiting
        and getattr(STRATEGIES.get(row.strategy), "meets_by", None) != "mpi"
    }
    mine, theirs = (rows.get(use.names) for use in (one, other))
    if mine is None or theirs is None:
        return
    more, fewer = (mine, theirs) if mine.cores >= theirs.cores else (theirs, mine)
    reference, names = configuration_of(more, "reference_"), report.names
    times = fewer.computation_scaling / more.computation_scaling
    if configuration_of(fewer, "reference_") != reference or pd.isna(times):
        return
    ends = math.nan, math.nan
    if configuration_of(fewer) == reference:
        ends = (1 / more.computation_scaling_high, 1 / more.computation_scaling_low)
    busy, busy_fewer = more.parallel_efficiency, fewer.parallel_efficiency
    texts = [
        (
            times,
            f"for the same work, {names.subject(more.label, 'takes')} "
            f"{with_interval(times, *ends, '.2f', ' times')} the core time of {names(fewer.label)}",
        ),
        (
            busy_fewer / busy,
            f"cores are busy for {100 * busy:.0f} % of the time with {names(more.label)}, and for "
            f"{100 * busy_fewer:.0f} % with {names(fewer.label)}",
        ),
    ]
    for _, text in sorted(texts, reverse=True):
        yield Finding(text, "efficiencies")
    if times >= MORE_CORE_TIME and not ends[0] <= 1:
        yield Finding(
            "the same work takes more core time where cores share units and memory, batches are "
            "smaller, ranks exchange, or threads wait actively",
            "efficiencies",
        )
    balance, communication = more.load_balance, more.communication_efficiency
    if balance <= UNEQUAL and balance <= communication:
        yield Finding(
            f"of {names(more.label)}, the busiest has {1 / balance:.2f} times the core time of the "
            "mean: give all equal batches, and cores that nothing else uses",
            "efficiencies",
        )
    elif communication <= WAITING:
        threads = "threads without work, " if more.cores > more.ranks else ""
        yield Finding(
            f"even the busiest of {names(more.label)} is off its cores for "
            f"{100 - 100 * communication:.0f} % of the time, as for {threads}exchange, input or "
            "storage",
            "efficiencies",
        )


def _compare_waits(
    report: Report, one: BestUse | Alternative, other: BestUse | Alternative
) -> Iterator[Finding]:
    """Compare the waits of two uses for their next batch, if one of them waits notably."""
    table, names = report.table("configurations"), report.names
    fractions = dict(zip(names_of_rows(table), table["input_fraction"].astype(float), strict=True))
    mine, theirs = (100 * fractions.get(use.names, math.nan) for use in (one, other))
    if not math.isnan(mine + theirs) and max(mine, theirs) >= 100 * INPUT_FRACTION:
        yield Finding(
            f"{names.subject(one.label, 'waits')} for the next batch in {mine:.0f} % of a step, "
            f"and {names(other.label)} in {theirs:.0f} %",
            "configurations",
        )


def parts_of_steps(report: Report) -> list[tuple[str, pd.DataFrame]]:
    """Return the parts of a step of rank 0, for each configuration that findings describe.

    Returns
    -------
    The rows of the table `attribution` by `part`, for each label: also for the alternatives that
    the answer tells beside the closest one. If no best use has clocks, all configurations with
    clocks are returned.
    """
    table = report.without_fits.table("attribution").dropna(subset=["part"])
    table = table[table["rank"] == 0]
    if not among(table, {answer.names for answer in report.answers}).empty:
        others = {use.names for answer in report.answers for use in answer.others}
        table = among(table, report.shown | others)
    groups = table.groupby("label", sort=False)
    return [(label, parts.set_index("part")) for label, parts in groups]


def changes(report: Report) -> Iterator[Finding]:
    """Yield what a change of a program gains: where it was measured, and else at most."""
    names, rows = report.names, report.without_fits.comparisons
    rows = rows[rows["variant"].isin((MEMORY, LOADER)) & (rows["kind"] != UNAVAILABLE)]
    unchanged = rows.loc[rows["reference"] == MAIN, "reference_variant"].unique()
    is_alike = rows["reference_variant"].isin(unchanged)
    for key in ("strategy", "layout"):
        is_alike &= rows[key] == rows[f"reference_{key}"]
    for row in rows[is_alike].itertuples():
        time = names.fraction(ratio_of(row), f"time of {names(row.reference_label)}")
        gains = f"{names.subject(row.label, 'takes')} {time}"
        yield Finding(gains, "speedup", "speedup")
    rank_parts = report.without_fits.table("attribution")
    for label, parts in parts_of_steps(report):
        if TRACES in set(parts["source"]):
            # Loaders tell of input.
            seconds = parts["seconds"].drop("input", errors="ignore")
            # Any rank may wait most for the slowest one.
            is_skew = (rank_parts["label"] == label) & (rank_parts["part"] == spans.SKEW)
            seconds[spans.SKEW] = rank_parts.loc[is_skew, "seconds"].max()
            rate, needed = parts.loc[spans.TRANSFER, ["rate", "needed"]].astype(float)
            if rate < needed:
                yield Finding(
                    f"the exchange of {names(label)} has {significant(rate)} Gbit/s, and needs "
                    f"{significant(needed)} Gbit/s to take no longer than computing",
                    "attribution",
                )
            for saved, remedy in spans.changes(seconds, rate, needed):
                text = (
                    f"to save at most {1000 * saved:.1f} ms of a step of {names(label)}, {remedy}"
                )
                yield Finding(text, "attribution")


def _describe(
    label: str, parts: pd.DataFrame, verdicts: Mapping[tuple, str], names: Names
) -> Iterator[str]:
    """Compare a step with that of the reference, and name its largest part and its overlap.

    Parameters
    ----------
    verdicts : by the label of a best use and the label of its alternative.
    """
    pair = label, str(parts["reference_label"].iloc[0])
    if NOT_DISTINGUISHABLE not in (verdicts.get(pair), verdicts.get(pair[::-1])):
        yield from _explain_difference(label, parts, verdicts, names)
    fractions = parts["fraction"].reindex(_PART_NAMES).dropna()
    if not fractions.empty:
        part, text = fractions.idxmax(), ""
        # An unknown part may be larger than all known parts.
        if fractions[part] >= 1 - fractions.sum():
            text = f", {100 * fractions[part]:.0f} % of it {_PART_NAMES[part]}"
        whole = 1000 * parts.loc[WHOLE, "seconds"]
        yield f"a step of {names(label)} takes {whole:.1f} ms{text}"
    overlap = 1000 * parts["seconds"].get(OVERLAP, 0.0)
    if overlap > 0:
        yield (
            f"in a step of {names(label)}, {overlap:.1f} ms of exchange go on alongside other "
            "parts, and may slow them"
        )


def _explain_difference(
    label: str, parts: pd.DataFrame, verdicts: Mapping[tuple, str], names: Names
) -> Iterator[str]:
    """Explain by how much a step differs from that of the reference, if both were measured.

    Of the parts whose interval excludes 0, the largest that changed in the same direction as the
    step is named. Nothing is explained in two cases: the instrumented runs contradict the timing
    runs, or the timing runs contradict the answer.
    """
    differences, first, name = 1000 * parts["difference_seconds"], parts.iloc[0], names(label)
    timed, whole = 1000 * first["timed_difference_seconds"], differences[WHOLE]
    part_differences = differences.reindex(_PART_NAMES)
    instrument = "traces" if TRACES in set(parts["source"]) else "clocks"
    if pd.isna(whole) or pd.isna(timed) or part_differences.isna().all():
        return
    # A step of the configuration may have more rows than a step of the reference. It is compared
    # with as many steps of the reference as have the same rows.
    reference, reference_steps = names(first["reference_label"]), first["reference_steps"]
    agree = abs(timed) <= AGREES * abs(whole) and abs(whole) <= AGREES * abs(timed)
    pair = label, first["reference_label"]
    contradicts_answer = verdicts.get(pair if timed >= 0 else pair[::-1]) == FASTER
    if whole * timed <= 0 or not agree or contradicts_answer:
        yield (
            f"how {names.subject(label, 'differs')} from {reference} is not explained: a step "
            f"takes {_compare(timed)} in the timing runs, and {_compare(whole)} with {instrument}"
        )
        return
    is_whole = reference_steps == int(reference_steps)
    several = in_words(int(reference_steps)) if is_whole else f"{reference_steps:.2g}"
    than = f"{'a step' if reference_steps == 1 else f'{several} steps'} of {reference}"
    text = f"a step of {name} takes {_compare(timed)} than {than}"
    unknown = whole - part_differences.sum()
    _, low, high = (parts[column] for column in _DIFFERENCE)
    holds_0 = ((low <= 0) & (high >= 0)).fillna(False).reindex(_PART_NAMES, fill_value=False)
    certain = part_differences[~holds_0.astype(bool)].dropna()
    if certain.empty:
        text += "; no part of it differs for certain"
    else:
        part = (timed * certain).idxmax()
        if timed * certain[part] > 0 and abs(certain[part]) >= abs(unknown):
            text += f": {_compare(*1000 * parts.loc[part, _DIFFERENCE])} {_PART_NAMES[part]}"
    yield text
    runs = f"{in_words(int(first['matches']))} run{'' if first['matches'] == 1 else 's'}"
    with_clocks = _compare(*1000 * parts.loc[WHOLE, _DIFFERENCE])
    yield f"in {runs} with {instrument}, a step of {name} takes {with_clocks} than {than}"
    ranks, reference_ranks = (
        Layout.parse(first[column]).ranks for column in ("layout", "reference_layout")
    )
    compute = 1000 * parts.loc["compute", "seconds"]
    reference_compute = compute - differences["compute"]
    is_one_variant = first["variant"] == first["reference_variant"]
    if ranks > reference_ranks and is_one_variant and not pd.isna(reference_compute):
        share = reference_compute * reference_ranks / ranks
        yield (
            f"a step of {name} computes for {compute:.1f} ms; an equal share of the computing of "
            f"{reference} would be {share:.1f} ms"
        )


def _compare(more: float, low: float = math.nan, high: float = math.nan) -> str:
    """Describe how many milliseconds more or less something takes, with their interval."""
    if more >= 0:
        return with_interval(more, low, high, ".1f", " ms more")
    return with_interval(-more, -high, -low, ".1f", " ms less")


def operations(report: Report) -> Iterator[Finding]:
    """Compare the operations of steps with those of matrix products on the same devices."""
    rows = among(report.table("efficiencies"), report.shown)
    for row in rows.dropna(subset="operations_fraction").itertuples():
        yield Finding(
            f"{report.names.subject(row.label, 'makes')} "
            f"{significant(row.operations_per_second / 1e9)} billion floating-point operations a "
            f"second at least: {100 * row.operations_fraction:.0f} % of those of matrix products "
            "in single precision on the same devices",
            "efficiencies",
        )


def ladders(report: Report) -> Iterator[Finding]:
    """Describe each ladder: its largest changes, the ratio of its ends, and whether they agree."""
    names = report.names
    for (dataset, workload, ladder), rows in _ladders(report):
        epoch_or_run, ends = unit(report.tables, workload), rows.iloc[-1]
        on_ladder = f"on the ladder {quote(ladder)} ({quote(f'{workload} on {dataset}')})"
        if ends.kind == "unavailable":
            of_ends = f"the ratio of the ends is unavailable: {quote(str(ends.reason))}"
        else:
            takes = names.subject(ends.after, "takes")
            of_ends = f"{takes} {_ratio(ends)} the time per {epoch_or_run} of {names(ends.before)}"
        changes = _changes(quote(ladder), rows, epoch_or_run)
        for text in (*changes, f"{on_ladder}, {of_ends}"):
            yield Finding(text, "ladder", "ladder")


def ladder_answers(report: Report) -> Iterator[Finding]:
    """Tell the part of the time that remains after the changes of each ladder."""
    for (_, workload, ladder), rows in _ladders(report):
        one = with_article(unit(report.tables, workload))
        ends, rungs = rows.iloc[-1], rows[rows["part"] == RUNG].dropna(subset=["ratio"])
        if ends.kind == "unavailable":
            text = f"unavailable: the ladder {quote(ladder)} has no ratio: {quote(ends.reason)}"
        elif ends.part == RUNG:
            text = f"with {quote(ends.change)}, {one} takes {_ratio(ends)} the time"
        else:
            saves = ends.ratio <= 1
            text = (
                f"together, the changes of {quote(ladder)} {'shorten' if saves else 'lengthen'} "
                f"{one} to {_ratio(ends)} its time"
            )
            if not rungs.empty:
                largest = rungs.sort_values("ratio", ascending=saves).iloc[0]
                text += f"; the largest, {quote(largest.change)}, to {largest.ratio:.2f}"
        compares = report.names.comparison(ends.after, ends.before, "time", ratio_of(ends))
        yield Finding(text, "ladder", "ladder", compares=(compares,))


def _ladders(report: Report) -> list[tuple[tuple, pd.DataFrame]]:
    """Return dataset, workload, name and rows of each ladder; the last row is of its ends.

    Ladders with one change come last. Their only row is of the change, and so of the ends.
    """
    groups = report.tables["ladder"].groupby(["dataset", "workload", "ladder"], sort=False)
    return sorted(groups, key=lambda group: len(group[1]) == 1)


def _changes(ladder: str, rows: pd.DataFrame, epoch_or_run: str) -> Iterator[str]:
    """Describe the largest changes, and whether all changes explain the ratio of the ends."""
    if rows.iloc[-1].part == RUNG:
        return
    (product,) = rows[rows["part"] == PRODUCT].itertuples()
    rungs = rows[rows["part"] == RUNG]
    if product.kind == "unavailable":
        yield f"the product of the changes of {ladder} is unavailable: {quote(product.reason)}"
        return
    # The change that saves most comes first, or the one that costs most if no change saves time.
    ordered = rungs.sort_values("ratio", ascending=product.ratio <= 1).head(RUNGS_NAMED)
    for place, row in enumerate(ordered.itertuples(), start=1):
        which = "the largest" if place == 1 else f"number {in_words(place)}"
        yield (
            f"of the changes of {ladder}, {which} is {quote(row.change)}: {row.ratio:.2f} "
            f"{of_or_times(row.ratio)} the time, {'saving' if row.cost_seconds >= 0 else 'adding'} "
            f"{abs(row.cost_seconds):.2f} s {with_article(epoch_or_run)}"
        )
    yield (
        f"the {with_noun(len(rungs), 'change')} of {ladder}, each measured by itself, multiply to "
        f"{_ratio(product, with_word=False)}"
    )
    if pd.isna(product.product_to_ends):
        return
    quotient, low, high = (getattr(product, f"product_to_ends{e}") for e in ("", "_low", "_high"))
    off = quotient - 1
    text = (
        f"that product of {ladder} is {100 * abs(off):.0f} % {'below' if off < 0 else 'above'} "
        "the ratio of the ends"
    )
    if not pd.isna(low):
        text += f" (quotient {low:.2f}–{high:.2f}): "
        if max(abs(low - 1), abs(high - 1)) <= TOLERANCE:
            text += "the changes explain it"
        elif low - 1 > TOLERANCE or high - 1 < -TOLERANCE:
            text += "the changes do not explain it"
        else:
            agrees = "it agrees" if abs(off) <= TOLERANCE else "this may be chance"
            text += f"{agrees}, and more paired runs would tell"
    yield text


def _ratio(row, with_word: bool = True) -> str:
    """Return a ratio of a ladder with its interval, or with the range if paired runs are few."""
    has_interval = row.part == PRODUCT or row.matches >= MATCHES_FOR_INTERVAL
    kind = "" if has_interval else "range "
    text = with_interval(row.ratio, row.ratio_low, row.ratio_high, ".2f", kind=kind)
    return f"{text} {of_or_times(row.ratio)}" if with_word else text


def waits_for_input(report: Report) -> Iterator[Finding]:
    """Name the configurations of programs that wait for their next batch, and a remedy."""
    rows = among(report.table("configurations"), report.shown)
    rows = rows[rows["input_fraction"].astype(float) >= INPUT_FRACTION]
    for row in rows.itertuples():
        part = f"{100 * row.input_fraction:.0f} %"
        text = f"{report.names.subject(row.label, 'waits')} for the next batch in {part} of a step"
        yield Finding(text, "configurations")
    has_workers = rows["loader_workers"].fillna(0) > 0
    if not has_workers.all():
        yield Finding(
            "to load batches beside the steps, which saves at most this time, give the DataLoader "
            "`num_workers=1`, and the worker a core of its own",
            "configurations",
        )
    if has_workers.any():
        yield Finding(
            "the loader has workers, which are late: give it more of them with cores of their own, "
            "or make a row in less time",
            "configurations",
        )


def clears_memory(use: Mapping) -> bool:
    """Return whether the kernel clears much memory in steps.

    Parameters
    ----------
    use : columns of `runs` or `configurations`, each a number, or a column of them.
    """
    clears = use["faults_per_step"] >= FAULTS_PER_SECOND * use["core_seconds_per_step"]
    return (use["kernel_fraction"] >= KERNEL_FRACTION) & clears


def memory(report: Report) -> Iterator[Finding]:
    """Name the configurations whose steps make the kernel clear memory."""
    rows = among(report.table("configurations"), report.shown)
    rows = rows[clears_memory(rows)]
    for row in rows.itertuples():
        yield Finding(
            f"in a step of {report.names(row.label)}, the kernel takes "
            f"{100 * row.kernel_fraction:.0f} % of the core time, and clears given-back memory in "
            f"{significant(row.faults_per_step)} page faults",
            "configurations",
        )
    is_program = rows["workload"].isin(programs(report.tables))
    if not is_program.all():
        yield Finding(
            "to keep the memory from step to step, leave out `keep_memory: false`",
            "configurations",
        )
    if is_program.any():
        yield Finding(
            f"to keep the memory of a program's tensors, call `{KEEP_MEMORY}` before it",
            "configurations",
        )


def outside_steps(report: Report) -> Iterator[Finding]:
    """Describe the time outside the training steps of the configurations that findings describe.

    If no such configuration has a time, all configurations with a time are described.
    """
    shown, report = report.shown, report.without_fits
    if report.tables["runs"].empty:
        yield Finding("no workload was trained over epochs", "configurations")
        return
    timed = report.table("configurations")
    timed = timed[timed["kind"] != "unavailable"]
    if timed.empty:
        why = "no run ended ok" + " without interruption" * any_ok(report.tables)
        text = f"the time outside the training steps is unavailable: {why}"
        yield Finding(text, "configurations")
    selected, whole = among(timed, shown), whole_runs(report.tables)
    for _, row in (timed if selected.empty else selected).iterrows():
        at_least, seconds, inside = "", row["wall_seconds"], "the training steps"
        if row["workload"] not in programs(report.tables):
            columns_of = {
                name: [f"{part}_seconds" for part in parts] for name, parts in _ACTIVITIES.items()
            }
            spent = {name: row[columns].sum() for name, columns in columns_of.items()}
            is_unknown = any(row[columns].isna().any() for columns in columns_of.values())
            at_least = "at least " * is_unknown
        # A whole run includes all its time.
        elif row["workload"] in whole:
            continue
        elif pd.isna(row["total_train_seconds"]):
            # Only a window of steps was timed. The rest is known of a training that is projected.
            if pd.isna(row["projected_rest_seconds"]):
                continue
            seconds, inside = row["projected_seconds"], "the steady steps, by projection"
            spent = {
                "starting and warming up": row["startup_seconds"],
                "in evaluations and the like": row["projected_rest_seconds"],
            }
        else:
            seconds, inside = row["program_seconds"], "the epochs that count"
            first_epoch, spent = "in its first epoch", {}
            if pd.isna(row["startup_seconds"]):
                first_epoch = "starting up and in its first epoch"
            else:
                spent["starting up"] = row["startup_seconds"]
            if not pd.isna(row["first_epoch_seconds"]):
                spent[first_epoch] = row["first_epoch_seconds"]
            outside = seconds - row["total_train_seconds"]
            spent["between and after the epochs"] = outside - sum(spent.values())
        text = (
            f"{report.names.subject(row['label'], 'spends')} {at_least}{sum(spent.values()):.1f} "
            f"of {seconds:.1f} s outside {inside}, most of it {max(spent, key=spent.__getitem__)}"
        )
        yield Finding(text, "configurations")
        if row["projected_rest_seconds"] >= REST_FRACTION * row["projected_seconds"]:
            yield Finding(
                f"to save time of {report.names(row['label'])} outside its steps, evaluate, save "
                "and log less often",
                "configurations",
            )


def links(report: Report) -> Iterator[Finding]:
    """Compare each configuration with the same one on its fastest network.

    The ratio is over paired runs if the fastest network is a reference. Otherwise it is that of the
    median times, and has no interval.
    """
    ratios = {
        (configuration_of(row), configuration_of(row, "reference_")): ratio_of(row)
        for row in report.comparisons.itertuples()
        if row.kind != "unavailable"
    }
    table = report.tables["configurations"].dropna(subset=["train_seconds_per_epoch"])
    # The seconds over each network, by the configuration without its network.
    over_networks: defaultdict[tuple, dict[str, float]] = defaultdict(dict)
    for (*configuration, network), seconds in zip(
        names_of_rows(table), table["train_seconds_per_epoch"].astype(float), strict=True
    ):
        over_networks[tuple(configuration)][network] = seconds
    for configuration, times in over_networks.items():
        dataset, workload, *parts = configuration
        fastest = min(times, key=times.__getitem__)
        one = with_article(unit(report.tables, workload))
        for network in sorted(times.keys() - {fastest}):
            medians = Ratio(times[network] / times[fastest], math.nan, math.nan, 1)
            ratio = ratios.get(((*configuration, network), (*configuration, fastest)), medians)
            time = report.names.fraction(ratio, f"time over {quote(fastest)}")
            text = f"over {quote(network)}, {one} of {quote(' '.join(parts))} takes {time}"
            of = f"time of {quote(' '.join(parts))}"
            compares = (Comparison(f"{quote(network)} against {quote(fastest)}", of, ratio),)
            task = f"{dataset} {workload} "
            yield Finding(text, "speedup", "speedup", task=task, compares=compares)
