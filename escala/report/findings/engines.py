"""Tell which engine takes the least time, by the fastest configuration of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from escala.analysis.verdicts import FASTER, NO_VERDICT, SLOWER
from escala.report.findings.best_use import against_main, seconds_per_epoch
from escala.report.findings.compared import Compared, Headline, interval, rows_of
from escala.report.findings.words import Finding, Tables, of, quoted, with_labels
from escala.report.tables.views import programs, same_batch
from escala.strategies import STRATEGIES

POSITION = 13
SECTION = "answer"
QUESTION = "engines"
ASKS = "Which engine takes the least time?"

#: Names of engines, as a strategy has them.
TITLES = {"tensorflow": "TensorFlow", "torch": "PyTorch"}


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Compare the fastest engine of each dataset and workload with each other one.

    Only configurations with the batch of their main reference count. The verdict is that of the
    matches of both, where one is a reference of the other.
    """
    ratios = _ratios(tables)
    for labels, times in _times(tables).values():
        best: dict[str, tuple] = {}
        for names in sorted(times, key=times.__getitem__):
            if title := engine_title(names):
                best.setdefault(title, names)
        engine, first = next(iter(best.items()), (None, None))
        for other, names in list(best.items())[1:]:
            one, two = (f"{e} ({quoted(labels[n])})" for e, n in ((engine, first), (other, names)))
            if found := ratios.get((first, names)):
                text = _told(found, one, two)
            elif found := ratios.get((names, first)):
                text = _told(found, two, one)
            else:
                ratio = times[first] / times[names]
                text = (
                    f"{one} takes {ratio:.2f} of the median time of {two}; without matches of "
                    "both there is no verdict"
                )
            yield Finding(f"{text}.", "speedup", "speedup")


def engine_title(names: tuple) -> str | None:
    """Return the engine of a configuration; None if its strategy has none, or is no more there.

    Parameters
    ----------
    names : the values of `CONFIGURATION`.
    """
    strategy = STRATEGIES.get(names[2])
    engine = strategy and strategy.engine
    return engine and TITLES[engine.partition(".")[0]]


def _ratios(tables: Tables) -> dict[tuple, Headline]:
    """Return what decides on two configurations, by the names of both."""
    rows = rows_of(with_labels(tables["speedup"], tables))
    return {(each.names, each.reference_names): each.headline for each in rows if _counts(each)}


def _times(tables: Tables) -> dict[tuple, tuple[Mapping[tuple, str], Mapping[tuple, float]]]:
    """Return the labels and the known seconds of an epoch of the configurations of each task."""
    seconds, found = seconds_per_epoch(tables), {}
    programs_here = programs(tables)
    for row in filter(_counts, rows_of(against_main(tables))):
        if row.workload in programs_here or row.reference_names not in seconds:
            continue
        labels, times = found.setdefault((row.dataset, row.workload), ({}, {}))
        labels |= {row.names: row.label, row.reference_names: row.reference_label}
        times[row.reference_names] = seconds[row.reference_names]
        times[row.names] = row.epochs.value * times[row.reference_names]
    return found


def _counts(row: Compared) -> bool:
    return row.kind != "unavailable" and same_batch(row)


def _told(found: Headline, one: str, two: str) -> str:
    """Compare a configuration with its reference by its verdict."""
    ratio = found.ratio
    fraction = f"{ratio.value:.2f} {of(ratio.value)} the time"
    if found.verdict in (FASTER, SLOWER):
        return f"{one} takes {fraction} of {two}{interval(ratio)}"
    start = found.brief if found.verdict == NO_VERDICT else "not distinguishable"
    return f"{start[0].upper()}{start[1:]}: {one} takes {fraction} of {two}{interval(ratio)}"
