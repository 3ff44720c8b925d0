"""Tell which engine takes the least time, by the quickest configuration of each."""

from __future__ import annotations

from collections.abc import Iterator

from escala.analysis.best_use import UNAVAILABLE, Alternative
from escala.analysis.verdicts import FASTER
from escala.core.engines import ENGINES
from escala.report.findings.best_use import answers
from escala.report.findings.compared import interval
from escala.report.findings.words import Finding, Tables, of, quoted, sentence
from escala.report.tables.views import programs
from escala.strategies import STRATEGIES

POSITION = 13
SECTION = "answer"
QUESTION = "engines"
ASKS = "Which engine takes the least time?"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Compare the engine of each best use with the quickest configuration of each other engine."""
    for answer in answers(tables):
        engine = engine_title(answer.names)
        if answer.workload in programs(tables) or engine is None:
            continue
        others: dict[str, Alternative] = {}
        for each in sorted(answer.alternatives, key=lambda each: -each.ratio.value):
            title = engine_title(each.names)
            if title not in (None, engine) and each.verdict != UNAVAILABLE:
                others.setdefault(title, each)
        for title, each in others.items():
            verdict = "" if each.verdict == FASTER else f"{each.verdict}: "
            text = (
                f"{verdict}{engine} ({quoted(answer.label)}) takes {each.ratio.value:.2f} "
                f"{of(each.ratio.value)} the time of {title} ({quoted(each.label)})"
                f"{interval(each.ratio)}"
            )
            yield Finding(sentence(text), "best_use", "speedup", task=answer.key)


def engine_title(names: tuple) -> str | None:
    """Return the engine of a configuration; None if its strategy has none, or is no more there.

    Parameters
    ----------
    names : the values of `CONFIGURATION`.
    """
    strategy = STRATEGIES.get(names[2])
    engine = strategy and strategy.engine
    return engine and ENGINES[engine.partition(".")[0]].title
