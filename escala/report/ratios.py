"""Print the ratios of an experiment, its step times, and the parts of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from escala.analysis import attribution
from escala.analysis.measurements import read_run
from escala.analysis.statistics import ratio_interval
from escala.core.readable import counted
from escala.experiment.references import ONE_PROCESS, Configuration
from escala.record.comparable import matched
from escala.report.tables.views import labelled, unit

DATA = ["dataset", "workload"]
PARTS = list(Configuration._fields)
Tables = Mapping[str, pd.DataFrame]


def lines(tables: Tables) -> Iterator[str]:
    """Yield lines for each configuration, one process first, and for the variants of one process.

    Ratios are those of the training seconds of an epoch: over pairs of a session and repeat, with
    their 95 % interval. Parts are those of the median step of each rank.

    Parameters
    ----------
    tables : the result of `escala.report.tables.read`.
    """
    configurations = tables["configurations"]
    speedup = labelled(tables["speedup"], tables["runs"])
    ratios = speedup[speedup["reference"] == 1].set_index([*DATA, *PARTS])
    parts = tables["attribution"]
    for row in configurations.sort_values("ranks", kind="stable").itertuples():
        name = tuple(getattr(row, key) for key in (*DATA, *PARTS))
        yield f"{row.dataset}, {row.workload}: {' '.join(name[len(DATA) :])}"
        if row.kind == "unavailable":
            yield f"  unavailable: {row.reason}"
            continue
        if name in ratios.index:
            ratio = ratios.loc[name]
            yield f"  ratio to {ratio['reference_label']}: {_ratio(ratio)}"
        step = (row.step_seconds, row.step_low_seconds, row.step_high_seconds)
        if pd.notna(row.step_seconds):
            yield f"  step: {_spread(*(1000 * value for value in step), digits=1)} ms"
        yield f"  {unit(tables, row.workload)}: {row.train_seconds_per_epoch:.2f} s of training"
        yield from _parts(parts[(parts[[*DATA, *PARTS]] == list(name)).all(axis=1)])
    yield from _between_variants(tables["runs"])


def _ratio(row: pd.Series) -> str:
    if row["kind"] == "unavailable":
        return f"unavailable: {row['reason']}"
    values = (row["ratio"], row["ratio_low"], row["ratio_high"])
    return f"{_spread(*values, digits=3)}, {counted(row['pairs'], 'pair')}, {row['kind']}"


def _spread(middle: float, low: float, high: float, digits: int) -> str:
    interval = "" if pd.isna(low) else f" ({low:.{digits}f} to {high:.{digits}f})"
    return f"{middle:.{digits}f}{interval}"


def _parts(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the parts of the median step of every rank, in milliseconds."""
    for rank, group in rows.dropna(subset=["part"]).groupby("rank"):
        by_part = group.set_index("part")["median_seconds"]
        names = (*attribution.PARTS, attribution.OVERLAP, attribution.UNEXPLAINED)
        values = [
            f"{name} {'unavailable' if pd.isna(by_part[name]) else f'{1000 * by_part[name]:.1f}'}"
            for name in names
        ]
        whole, slowdown = 1000 * by_part[attribution.WHOLE], group["slowdown"].iloc[0]
        step = f"{whole:.1f} ms" + (
            "" if pd.isna(slowdown) else f", {slowdown:.2f} times that of timing runs"
        )
        yield f"  parts of a step of rank {rank} ({step}), ms: {', '.join(values)}"


def _between_variants(runs: pd.DataFrame) -> Iterator[str]:
    """Yield the ratio of one process with each other variant to one with the first variant."""
    strategy, layout = ONE_PROCESS
    single = runs[(runs["strategy"] == strategy) & (runs["layout"] == layout)]
    whole = single[single["comparable"] & (single["status"] == "ok") & (single["resumptions"] == 0)]
    for (dataset, workload), group in whole.groupby(DATA, sort=False):
        (first, references), *others = (
            (variant, list(map(_timed, of_variant.itertuples())))
            for variant, of_variant in group.groupby("variant", sort=False)
        )
        for variant, timed in others:
            pairs = matched(timed, references)
            both = zip(pairs.runs, pairs.references, strict=True)
            ratio = ratio_interval([mine["seconds"] / theirs["seconds"] for mine, theirs in both])
            if ratio.estimate:
                yield (
                    f"{dataset}, {workload}: {strategy} {layout}, {variant} against {first}: "
                    f"{_spread(*ratio, digits=3)}"
                )


def _timed(row) -> dict:
    """Return a measurement with its training seconds of an epoch, from its row in `runs`."""
    return read_run(row.file) | {"seconds": row.train_seconds_per_epoch}
