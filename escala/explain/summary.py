"""Write the summary of an experiment from its tables: the answer first, then the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pandas as pd

from escala.explain.attribution import OVERLAP, PARTS, UNEXPLAINED, WHOLE
from escala.explain.comparable import CONFIGURATION
from escala.explain.ladder import PRODUCT, RUNG, TOLERANCE
from escala.explain.tables.views import (
    by_gradient,
    fitted_workloads,
    is_main_reference,
    labelled,
    untested,
)
from escala.parallel.layout import Layout
from escala.references import Place

_PART_NAMES = {
    "input": "on input",
    "dispatch": "entering and leaving the compiled step",
    "compute": "computing forward and backward",
    "optimiser": "in the optimiser",
    "skew": "waiting for the slowest rank",
    "transfer": "in transfer and reduction",
    "copies": "copying to and from fusion buffers",
    "negotiation": "in negotiation and cycles",
}
#: The range of n values covers their median with probability 1 - 2 / 2**n: 95 % needs six.
PAIRS_FOR_INTERVAL = 6
#: Parts of a step are named from this share of it on.
SHARE_NAMED = 0.005
#: Precision and recall that differ by no more than this in any class are called the same.
SAME_SCORES = 0.02
YES, NO = "Yes", "No"
#: Of a ladder's changes, so many are named.
RUNGS_NAMED = 3
Tables = Mapping[str, pd.DataFrame]


def summary(tables: Tables, name: str, title: str, files: Iterable[str] = ()) -> str:
    """Write the summary in Markdown.

    Parameters
    ----------
    tables : those of `escala.explain.tables`.
    name, title : of the experiment.
    files : figures and tables to link to, relative to the summary.
    """
    sentences = (_answers, _setting, _elsewhere, _within, _ladders, _quality, _leakage, _gaps)
    parts = [
        f"# {title}",
        *filter(None, (sentence(tables, name) for sentence in sentences)),
        "## Configurations",
        _table(tables),
        "Training time is that of the training steps of an epoch. In brackets: 95 % intervals, "
        f"or the range where there are fewer than {PAIRS_FOR_INTERVAL} runs. Efficiency is the "
        "speed-up divided by the cores used for each of the reference's. Time to accuracy is "
        "training time; > means not reached."
        + " A fit takes no epochs: the time of all of it stands in brackets, and is compared with "
        "nothing." * bool(fitted_workloads(tables)),
    ]
    links = [f"- [{file.rpartition('/')[2]}]({file})" for file in files]
    if links:
        parts += ["## Figures and tables", "\n".join(links)]
    return "\n\n".join(parts) + "\n"


def _setting(tables: Tables, name: str) -> str:
    """Describe what was run, on which data and on which machine."""
    runs = tables["runs"]
    current = runs[runs["current"]]
    machines = [
        f"{row.cpu} ({_count(row.cores_available, 'core')} available, "
        f"{row.memory_bytes / 2**30:.1f} GiB)"
        for row in runs[["cpu", "cores_available", "memory_bytes"]].drop_duplicates().itertuples()
    ]
    data = [
        f"{_joined(group['workload'].unique())} on {dataset} ({_data(group)}; "
        f"{_span(group['train_rows'])} training and {_span(group['test_rows'])} test rows)"
        for dataset, group in current.groupby("dataset", sort=False)
    ]
    return (
        f"On {_joined(machines)}, {_count(len(_names(current)), 'configuration')} of "
        f"{_joined(data)} took part, {_timed(current)}."
    )


def _timed(current: pd.DataFrame) -> str:
    """Return how often configurations were timed, by workload where that differs."""
    repeats = current.groupby("workload", sort=False)["repeat"].nunique()
    if repeats.nunique() == 1:
        return f"each timed {_count(repeats.iloc[0], 'time')}"
    times = (f"{workload} {_count(count, 'time')}" for workload, count in repeats.items())
    return f"each timed: {_joined(times)}"


def _data(group: pd.DataFrame) -> str:
    simulated = group["provenance"].iloc[0] == "simulated"
    provenance = (
        "simulated data, which says nothing about real genomes" if simulated
        else f"data from {group['provenance'].iloc[0]}"
    )  # fmt: skip
    return provenance + "; leaky split" * bool(group["leaky"].any())


def _answers(tables: Tables, name: str) -> str:
    """Answer for each configuration whether it takes less time than what it is compared with."""
    tables = by_gradient(tables)
    speedup = _labelled(tables["speedup"], tables)
    if speedup.empty:
        return "Nothing was compared: no configuration was trained beside a reference."
    of_reference = set(_places(tables["configurations"].dropna(subset=["reference"])))
    is_reference = pd.Series([place in of_reference for place in _places(speedup)], speedup.index)
    compared = speedup if is_reference.all() else speedup[~is_reference]
    answers = [
        " ".join(_answer(group, speedup, tables["score_differences"]))
        for _, group in compared.groupby(list(CONFIGURATION), sort=False)
    ]
    return answers[0] if len(answers) == 1 else "\n".join(f"- {answer}" for answer in answers)


def _places(frame: pd.DataFrame) -> Iterator[tuple]:
    return frame[list(CONFIGURATION)].itertuples(index=False, name=None)


def _answer(group: pd.DataFrame, speedup: pd.DataFrame, scores: pd.DataFrame) -> Iterator[str]:
    """Yield the sentences on one configuration, that on its main reference first."""
    main, *others = group.itertuples()
    if main.kind == "unavailable":
        yield f"Unavailable: {main.label} against {main.reference_label}: {_quoted(main.reason)}."
    else:
        yield _main_answer(main, _scores(main, scores)) + _left_out(main)
    for row in others:
        if row.kind == "unavailable":
            yield f"Against {row.reference_label}: unavailable ({_quoted(row.reason)})."
        else:
            yield _second_answer(row, _row_of_reference(row, speedup)) + _left_out(row)


def _left_out(row) -> str:
    """Return why some pairs have no ratio, as a sentence after those on the others."""
    return "" if pd.isna(row.reason) else f" {_quoted(row.reason)}."


def _main_answer(row, scores: str) -> str:
    subject, reference = f"{_words(row)} ({row.label})", _words(row, "reference_")
    take = "takes" if row.ranks == 1 else "take"
    epoch = f"{row.ratio:.2f} of the time of {reference}"
    interval = _interval(row.ratio_low, row.ratio_high, row.pairs) + (
        ", estimated from a part of an epoch" * (row.kind == "estimated")
        + ", on shared cores" * bool(row.oversubscribed)
        + ", on different hosts of one kind" * bool(row.other_hosts)
    )
    if row.global_batch == row.reference_global_batch:
        return (
            f"**{_verdict(row.ratio_low, row.ratio_high, row.pairs)}: {subject} {take} {epoch}** "
            f"({interval}), with equal batches of {row.global_batch} rows{scores}."
        )
    batches = (
        f"different batches, {row.global_batch} rows in a step against {row.reference_global_batch}"
    )
    updates = row.reference_global_batch / row.global_batch
    an_epoch = f"An epoch takes {epoch} ({interval}), with {updates:.2g} times the updates{scores}."
    if row.time_to_target_kind == "unavailable":
        return (
            f"**No verdict: {subject} and {reference} have {batches}**, and the experiment sets no "
            f"`target_accuracy`. {an_epoch}"
        )
    ends = (
        row.time_to_target_ratio_low,
        row.time_to_target_ratio_high,
        row.time_to_target_pairs,
    )
    share = (
        "an unknown share" if pd.isna(row.time_to_target_ratio)
        else f"{row.time_to_target_ratio:.2f}"
    )  # fmt: skip
    return (
        f"**{_verdict(*ends)}: {subject} {take} {share} of the time of {reference} to an accuracy "
        f"of {row.target_accuracy:g}** ({_interval(*ends)}). They have "
        f"{batches}. {an_epoch}"
    )


def _second_answer(row, of_reference) -> str:
    """Compare a configuration with a reference other than the main one.

    `of_reference` is the row that compares this reference with the main one, or None.
    """
    reference = f"{_words(row, 'reference_')} ({row.reference_label})"
    verdict = _verdict(row.ratio_low, row.ratio_high, row.pairs)
    differ = bool(row.global_batch != row.reference_global_batch)
    said = (
        f"Set against {reference}, {'it takes' if row.ranks == 1 else 'they take'} "
        f"{row.ratio:.2f} of the time "
        f"({_interval(row.ratio_low, row.ratio_high, row.pairs)}): "
        + {YES: "less", NO: "more"}.get(verdict, verdict.lower())
        + f", with batches of {row.global_batch} and {row.reference_global_batch} rows" * differ
        + "."
    )
    if of_reference is None or of_reference.kind == "unavailable":
        return said
    ends = _interval(of_reference.ratio_low, of_reference.ratio_high, of_reference.pairs)
    main = _words(of_reference, "reference_")
    return f"{said} That one takes {of_reference.ratio:.2f} of the time of {main} ({ends})."


def _row_of_reference(row, speedup: pd.DataFrame):
    """Return the row that compares a row's reference with the main one, or None."""
    place = [getattr(row, f"reference_{part}") for part in Place._fields]
    is_it = [names == (row.dataset, row.workload, *place) for names in _places(speedup)]
    return next(speedup[is_it].itertuples(), None)


def _words(row, of: str = "") -> str:
    """Describe a configuration, or with the prefix `reference_` its reference, by its processes."""
    layout, cores = Layout.parse(getattr(row, f"{of}layout")), getattr(row, f"{of}cores")
    each = int(cores) // layout.ranks
    if layout.ranks == 1:
        return f"one process {'on one core' if each == 1 else f'with {each} cores as threads'}"
    nodes = f" on {_in_words(layout.nodes)} nodes" if layout.nodes > 1 else ""
    return f"{_in_words(layout.ranks)} processes{nodes}{f' of {each} cores each' * (each > 1)}"


def _in_words(count: int) -> str:
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[count - 1] if count <= len(words) else str(count)


def _verdict(low: float, high: float, pairs: int) -> str:
    """Return Yes for a 95 % interval below 1 and No for one above it, as it is printed.

    An end that is open bounds nothing. Fewer than `PAIRS_FOR_INTERVAL` pairs have no such interval.
    """
    if pairs < PAIRS_FOR_INTERVAL:
        return f"No verdict from {_count(pairs, 'pair')}"
    if pd.isna(low) and pd.isna(high):
        return "No verdict"
    if round(high, 2) < 1:
        return YES
    return NO if round(low, 2) > 1 else "Not distinguishable"


def _interval(low: float, high: float, pairs: int) -> str:
    if pairs == 1:
        return f"one pair; a verdict needs {PAIRS_FOR_INTERVAL}"
    enough = pairs >= PAIRS_FOR_INTERVAL
    ends = "–".join("unknown" if pd.isna(end) else f"{end:.2f}" for end in (low, high))
    kind = "95 % interval" if enough else "range"
    return f"{kind} {ends}, {pairs} pairs" + f"; a verdict needs {PAIRS_FOR_INTERVAL}" * (
        not enough
    )


def _scores(row, scores: pd.DataFrame) -> str:
    """Return a phrase on the largest score difference from the reference, with its interval."""
    keys = [*CONFIGURATION, "reference"]
    own = scores[(scores[keys] == [getattr(row, key) for key in keys]).all(axis=1)]
    known = _differences(own)
    if known.empty:
        return ""
    apart = known[(known["low"] > SAME_SCORES) | (known["high"] < -SAME_SCORES)]
    if len(apart):
        named = (f"{row.rate} by {row.low:+.2f} to {row.high:+.2f}" for row in apart.itertuples())
        return f" and other scores: {_joined(named)}"
    bound = known[["low", "high"]].abs().max(axis=1)
    if bound.max() <= SAME_SCORES:
        return f" and the same scores (to {bound.max():.3f} in every class)"
    widest = f"{bound.max():.3f} ({known['rate'][bound.idxmax()]})"
    if ((known["low"] <= 0) & (known["high"] >= 0)).all():
        return f" and scores that are equal within chance: no class differs by more than {widest}"
    return f" and scores that differ by at most {widest}"


def _differences(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the intervals of differences as `low` and `high`, a row for each `rate` of a class."""
    rates = [
        scores.assign(
            rate=f"the {rate} of " + scores["class"],
            low=scores[f"{rate}_difference_low"],
            high=scores[f"{rate}_difference_high"],
        )
        for rate in ("precision", "recall")
    ]
    return pd.concat(rates, ignore_index=True).dropna(subset=["low", "high"])


def _elsewhere(tables: Tables, name: str) -> str:
    """Describe the time outside the steps, of each main reference and the fastest other."""
    tables = by_gradient(tables)
    timed = _labelled(tables["configurations"], tables)
    timed = timed[timed["kind"] != "unavailable"]
    if tables["runs"].empty:
        return "No workload was trained over epochs."
    if timed.empty:
        return "Where the time goes outside the training steps is unavailable: no run ended ok."
    shown = []
    for _, group in timed.groupby(["dataset", "workload"], sort=False):
        main = is_main_reference(group, tables["configurations"])
        others = group[~main].sort_values("train_seconds_per_epoch")
        shown += [*group[main].head(1).itertuples(), *others.head(1).itertuples()]
    return "Outside the training steps (medians, measured), " + "; ".join(map(_parts, shown)) + "."


def _parts(row) -> str:
    compiling = row.first_step_seconds + row.first_prediction_seconds
    rest = row.loading_seconds + row.build_seconds + row.broadcast_seconds + row.save_seconds
    return (
        f"{row.label} spends {row.startup_seconds:.1f} s starting up, {compiling:.1f} s in the "
        f"first steps and the first prediction, which compile, {row.evaluation_seconds:.1f} s in "
        f"the evaluation and {rest:.1f} s loading, building, broadcasting and saving, of "
        f"{row.wall_seconds:.1f} s in all"
    )


def _within(tables: Tables, name: str) -> str:
    """Describe how the time of a step of rank 0 is divided, if its clocks were read."""
    tables = by_gradient(tables)
    table = tables["attribution"].dropna(subset=["part"])
    if table.empty:
        return ""
    named = _labelled(table[table["rank"] == 0], tables)
    shown = [
        _shares(label, parts) + _more(parts) for label, parts in named.groupby("label", sort=False)
    ]
    return f"Within a training step (medians, rank 0), {'; '.join(shown)}."


def _more(parts: pd.DataFrame) -> str:
    """Describe how the parts of a step differ from those of the main reference."""
    by_part = parts.set_index("part")
    own, other = by_part["median_seconds"], by_part["reference_median_seconds"]
    if pd.isna(other[WHOLE]):
        return ""
    more, overlap = 1000 * (own - other), 1000 * own[OVERLAP]
    most = more.reindex(PARTS).dropna().sort_values(key=abs, ascending=False)
    named = most[most.abs() >= 1000 * SHARE_NAMED * own[WHOLE]]
    said = [f"{ms:+.1f} ms {_PART_NAMES[part]}" for part, ms in named.items()]
    return (
        f" ({more[WHOLE]:+.1f} ms against {parts['reference_label'].iloc[0]}"
        + (f": {', '.join(said)}" if said else "")
        + (f"; {overlap:.1f} ms of exchange go on beside these" if overlap > 0 else "")
        + ")"
    )


def _shares(label: str, parts: pd.DataFrame) -> str:
    by_part = parts.set_index("part")
    whole, unexplained = by_part.loc[WHOLE], by_part.loc[UNEXPLAINED]
    shares = by_part["share"].reindex(PARTS).dropna().sort_values(ascending=False)
    said = [
        f"{100 * share:.0f} % {_PART_NAMES[part]}"
        for part, share in shares.items()
        if share >= SHARE_NAMED
    ]
    slowdown = (
        "" if pd.isna(whole.slowdown) else f", {whole.slowdown:.2f} times that of timing runs"
    )
    rest = (
        "the rest is unavailable" if pd.isna(unexplained.share)
        else f"and {100 * unexplained.share:.1f} % are unexplained"
    )  # fmt: skip
    step = f"{1000 * whole.median_seconds:.1f} ms{slowdown}"
    return f"{label} spends of {step}, {_joined(said)}, {rest}"


def _ladders(tables: Tables, name: str) -> str:
    """Describe each ladder: the ratio of its ends, and whether its rungs explain it."""
    ladders = tables["ladder"].groupby(["dataset", "workload", "ladder"], sort=False)
    return " ".join(_ladder(*names, rows) for names, rows in ladders)


def _ladder(dataset: str, workload: str, ladder: str, rows: pd.DataFrame) -> str:
    whole = rows.iloc[-1]
    way = f"From {whole.before} to {whole.after} ({ladder}, {workload} on {dataset})"
    said = (
        f"{way} the ratio is unavailable ({_quoted(whole.reason)})." if whole.kind == "unavailable"
        else f"{way} an epoch with all that is in it takes {_ratio(whole)} of the time."
    )  # fmt: skip
    if whole.part == RUNG:
        return said
    (product,) = rows[rows["part"] == PRODUCT].itertuples()
    return f"{said} {_changes(rows[rows['part'] == RUNG], product)}"


def _changes(rungs: pd.DataFrame, product) -> str:
    if product.kind == "unavailable":
        return f"What each change between is worth is not known of all ({_quoted(product.reason)})."
    agreement = "" if pd.isna(product.of_direct) else f", {_agreement(product)}"
    most = rungs.sort_values("ratio", ascending=product.ratio <= 1).head(RUNGS_NAMED)
    named = (
        f"{row.change} ({row.ratio:.2f}, {row.cost_seconds:.2f} s)" for row in most.itertuples()
    )
    return (
        f"The {_count(len(rungs), 'change')} between, each measured by itself, multiply to "
        f"{_ratio(product)}{agreement}. Most is due to {_joined(named)}."
    )


def _agreement(product) -> str:
    """Describe how the product of the rungs agrees with the ratio of the ends."""
    off = product.of_direct - 1
    said = f"{100 * abs(off):.0f} % {'below' if off < 0 else 'above'} that"
    if pd.isna(product.of_direct_low):
        return said
    low, high = product.of_direct_low - 1, product.of_direct_high - 1
    interval = f"95 % interval of the quotient {1 + low:.2f} to {1 + high:.2f}"
    if max(abs(low), abs(high)) <= TOLERANCE:
        return f"{said}: they explain it"
    if low > TOLERANCE or high < -TOLERANCE:
        return f"{said} ({interval}): they do not explain it"
    verdict = "agrees with it" if abs(off) <= TOLERANCE else "may be chance"
    return f"{said}, which {verdict} ({interval}): to be sure takes more pairs"


def _ratio(row) -> str:
    if pd.isna(row.ratio_low):
        return f"{row.ratio:.2f}"
    resampled = row.part == PRODUCT or row.pairs >= PAIRS_FOR_INTERVAL
    kind = "95 % interval" if resampled else "range"
    return f"{row.ratio:.2f} ({kind} {row.ratio_low:.2f} to {row.ratio_high:.2f})"


def _quality(tables: Tables, name: str) -> str:
    """Describe how well the models classify, and whether configurations differ in it."""
    if tables["pooled"].empty:
        return "The quality of the models is unavailable: no run ended ok."
    leaky = sorted(tables["pooled"].loc[tables["pooled"]["leaky"], "dataset"].unique())
    unscored = untested(tables["pooled"])
    parts = [
        *_of_networks(by_gradient(tables)),
        _of_pairs(by_gradient(tables)),
        *_of_fits(tables),
        f"no test rows and hence no scores: {_joined(unscored)}" if unscored else "",
        f"scores on {_joined(leaky)} are too good: its split is leaky" if leaky else "",
    ]
    text = "; ".join(filter(None, parts))
    return f"{text[0].upper()}{text[1:]}."


def _of_networks(tables: Tables) -> list[str]:
    """Describe the scores of workloads that are trained by steps."""
    pooled = _labelled(tables["pooled"], tables)
    if pooled.empty:
        return []
    scored = _labelled(tables["configurations"], tables).dropna(subset=["accuracy"])
    worst, best = scored.loc[scored["accuracy"].idxmin()], scored.loc[scored["accuracy"].idxmax()]
    accuracy = (
        f"is {best.accuracy:.3f} under every configuration" if worst.accuracy == best.accuracy
        else f"is between {worst.accuracy:.3f} ({worst.label}) and {best.accuracy:.3f} "
        f"({best.label})"
    )  # fmt: skip
    lowest = " and ".join(_lowest(pooled, rate) for rate in ("precision", "recall"))
    apart = _apart(pooled)
    equality = (
        "" if scored.groupby(["dataset", "workload"]).size().max() == 1
        else "the intervals of all configurations overlap for every class" if not apart
        else f"the intervals do not all overlap for {_joined(apart)}"
    )  # fmt: skip
    return [f"the median accuracy {accuracy}", f"pooled over runs and splits, {lowest}", equality]


def _of_pairs(tables: Tables) -> str:
    """Describe how precision and recall differ from those of the main reference."""
    scores = tables["score_differences"]
    known = _differences(_labelled(scores[scores["reference"] == 1], tables))
    if known.empty:
        return ""
    names = known["rate"] + ", " + known["label"]
    bound = known[["low", "high"]].abs().max(axis=1)
    apart = known[(known["low"] > 0) | (known["high"] < 0)]
    differing = [
        f"{names[row.Index]} ({row.low:+.3f} to {row.high:+.3f})" for row in apart.itertuples()
    ]
    return (
        f"compared with {_joined(known['reference_label'].unique())} on the same test rows, no "
        f"class differs in precision or recall by more than {bound.max():.3f} "
        f"({names[bound.idxmax()]}), by the 95 % intervals of the differences"
        + (f"; they exclude 0 for {_joined(differing)}" if differing else "")
    )


def _of_fits(tables: Tables) -> list[str]:
    """Describe the accuracy of the baselines, which are fitted at once."""
    configurations = tables["configurations"]
    fits = configurations[configurations["training_kind"] == "fit"].dropna(subset=["accuracy"])
    return [
        f"on {dataset} an accuracy of "
        + _joined(f"{row.accuracy:.3f} is reached by {row.workload}" for row in group.itertuples())
        for dataset, group in fits.groupby("dataset", sort=False)
    ]


def _lowest(pooled: pd.DataFrame, rate: str) -> str:
    known = pooled.dropna(subset=[rate])
    if known.empty:
        return f"the lowest {rate} is unavailable"
    row = known.loc[known[rate].idxmin()]
    return (
        f"the lowest {rate} of a class is {row[rate]:.3f} ({row['class']}, {row.label}; 95 % "
        f"interval {row[f'{rate}_low']:.3f} to {row[f'{rate}_high']:.3f})"
    )


def _apart(pooled: pd.DataFrame) -> list[str]:
    """Name the rates whose intervals do not overlap between all configurations of a dataset."""
    return [
        f"the {rate} of {name} ({dataset})"
        for (dataset, _, name), group in pooled.groupby(
            ["dataset", "workload", "class"], sort=False
        )
        for rate in ("precision", "recall")
        if group[f"{rate}_low"].max() > group[f"{rate}_high"].min()
    ]


def _leakage(tables: Tables, name: str) -> str:
    """Describe, for each split, how scores depend on similar genomes in training."""
    leakage = tables["leakage"]
    if leakage.empty:
        return "What near-duplicates in training add to the scores is unavailable: no run ended ok."
    parts = [_split_by(dataset, group) for dataset, group in leakage.groupby("dataset", sort=False)]
    return f"What the scores mean (medians over runs): {'; '.join(parts)}."


def _split_by(dataset: str, group: pd.DataFrame) -> str:
    """Describe one dataset: its test rows, what is not scored, and every workload's accuracy."""
    first, share = group.iloc[0], 100 * group["similar_share"].median()
    scores = []
    for workload, runs in group.groupby("workload", sort=False):
        rest = runs["rest_accuracy"].dropna()
        said = f" and {rest.median():.3f} on the rest" if len(rest) else ""
        scores.append(f"{workload} {runs['accuracy'].median():.3f}{said}")
    no_rest = (
        "" if group["rest_rows"].any()
        else ", so that accuracy on the rest is unavailable (0 rows)"
    )  # fmt: skip
    whole = sorted(set(";".join(group["not_separable"].dropna()).split(";")) - {""})
    return (
        f"on {dataset}, split by {first['split_by']}, {share:.0f} % of the test rows have a "
        f"near-duplicate (at least {first['similarity']:g} of their k-mers) in training{no_rest}, "
        f"and the accuracy is {_joined(scores)}"
        + (f"; {_joined(whole)} cannot be separated and have no score" if whole else "")
    )


def _gaps(tables: Tables, name: str) -> str:
    """Describe what failed, and what to do about it."""
    runs = _labelled(tables["runs"], tables)
    current = runs[runs["current"]]
    failed = current[current["status"] != "ok"]
    more = (
        f"; with one repeat there are no intervals: set `repeats` to {PAIRS_FOR_INTERVAL} or more"
    )
    few = more * (current["repeat"].nunique() == 1)
    if failed.empty:
        return f"All {_count(len(current), 'timing run')} ended ok{few}."
    groups = failed.fillna({"reason": ""}).groupby(["label", "status", "reason"], sort=False)
    reasons = [
        f"{label} rep {', '.join(map(str, group['repeat']))} ({status}"
        + (f": {_quoted(reason)})" if reason else ")")
        for (label, status, reason), group in groups
    ]
    return (
        f"{len(failed)} of {_count(len(current), 'timing run')} did not end ok: "
        f"{'; '.join(reasons)}; to repeat just these, run "
        f"`uv run python scripts/retry.py results/{name}` and then the same Snakemake command "
        f"again{few}."
    )


def _table(tables: Tables) -> str:
    configurations = _labelled(tables["configurations"], tables)
    speedup = _labelled(tables["speedup"], tables)
    further = speedup[speedup["reference"] > 1].groupby("reference_label", sort=False)
    ratios, *columns = (
        frame.set_index(list(CONFIGURATION))
        for frame in (speedup[speedup["reference"] == 1], *(frame for _, frame in further))
    )
    current = tables["runs"][tables["runs"]["current"]]
    settings = current.drop_duplicates(list(CONFIGURATION)).set_index(list(CONFIGURATION))
    targets = (configurations["time_to_target_kind"] != "unavailable").any()
    headings = [
        "configuration", "runs ok", "global batch", "learning rate", "training s per epoch",
        "ratio", "speed-up", "efficiency", "accuracy", *["s to accuracy"] * bool(targets),
        *(f"ratio to {label}" for label, _ in further),
    ]  # fmt: skip
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    for row in configurations.itertuples():
        key = tuple(getattr(row, part) for part in CONFIGURATION)
        ratio = ratios.loc[key] if key in ratios.index else None
        is_fit = row.training_kind == "fit"
        compared = (
            ("–", "–", "–") if is_fit
            else ("reference", "1", "1") if ratio is None
            else [_with_interval(ratio, part) for part in ("ratio", "speedup", "efficiency")]
        )  # fmt: skip
        series = pd.Series(row._asdict())
        lines.append(
            "| "
            + " | ".join(
                [
                    row.label,
                    f"{row.runs_ok} of {row.runs_ok + row.runs_failed}",
                    "–" if is_fit else f"{settings.loc[key, 'global_batch']}",
                    "–" if is_fit else f"{settings.loc[key, 'learning_rate']:g}",
                    _training_seconds(series, is_fit),
                    *compared,
                    _with_interval(series, "accuracy", digits=3),
                    *["–" if is_fit else _time_to_accuracy(row)] * bool(targets),
                    *(
                        _with_interval(others.loc[key], "ratio") if key in others.index else "–"
                        for others in columns
                    ),
                ]
            )
            + " |"
        )
    return "\n".join(lines)


def _training_seconds(row: pd.Series, is_fit: bool) -> str:
    if not is_fit:
        estimated = " estimated" * (row["kind"] == "estimated")
        return _with_interval(row, "train", "_seconds_per_epoch") + estimated
    seconds = row["train_seconds_per_epoch"]
    return "unavailable" if pd.isna(seconds) else f"– (fit: {seconds:.2f} s)"


def _with_interval(row: pd.Series, name: str, unit: str = "", digits: int = 2) -> str:
    value, low, high = (row[f"{name}{end}{unit}"] for end in ("", "_low", "_high"))
    if pd.isna(value):
        return "unavailable"
    interval = "" if pd.isna(low) else f" ({low:.{digits}f}–{high:.{digits}f})"
    return f"{value:.{digits}f}{interval}"


def _time_to_accuracy(row) -> str:
    if row.time_to_target_kind == "unavailable":
        return "unavailable"
    bound = "> " if row.time_to_target_kind == "censored" else ""
    return f"{bound}{row.time_to_target_seconds:.1f} (to {row.target_accuracy:.2f})"


def _names(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[list(CONFIGURATION)].drop_duplicates()


def _labelled(frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    return labelled(frame, tables["runs"], ("dataset", "workload", "variant", "network"))


def _quoted(reason: str, letters: int = 200) -> str:
    """Quote the words of another program, as code, on one line."""
    text = " ".join(reason.replace("`", "'").split())
    return f"`{text if len(text) <= letters else text[: letters - 1] + '…'}`"


def _joined(parts: Iterable[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _span(numbers: pd.Series) -> str:
    """Return the smallest and the largest number, or the only one."""
    return " to ".join(f"{number:.0f}" for number in sorted({numbers.min(), numbers.max()}))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
