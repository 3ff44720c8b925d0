"""Put findings in words, for readers who know neither names of configurations nor our terms.

Findings name configurations as experiments do, so that they can be found in tables. `say` puts in
place of each name what it stands for: `two processes on one node`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pandas as pd

from escala.experiment.runs import NATIVE, Configuration, layout_in_words, strategy_in_words
from escala.report.findings.words import Tables, quoted, with_labels
from escala.report.tables.views import fitted_workloads, labelled, trained_by_steps
from escala.runtime.layout import Layout

#: Verbs after a name that stands for several processes.
_PLURAL = {
    "takes": "take", "spends": "spend", "has": "have", "is": "are", "was": "were", "does": "do",
    "trains": "train",
}  # fmt: skip
_VERB = re.compile(rf" ({'|'.join(_PLURAL)})\b")
#: What precedes a name that is not the subject of its sentence.
_NO_SUBJECT = re.compile(r"\b(and|between|by|from|in|of|on|over|than|to|under|with) $")
#: How many matches an interval is from, which the section on certainty tells.
_MATCHES = re.compile(r", \d+ paired runs\)")
#: Our terms, and what they say to others.
_TERMS = {
    "rank": "process", "ranks": "processes", "Ranks": "Processes",
}  # fmt: skip
_TERM = re.compile(rf"\b({'|'.join(_TERMS)})\b")


class _Named(NamedTuple):
    """A configuration and the threads of each of its processes, as far as they differ."""

    configuration: Configuration
    threads: int

    @property
    def base(self) -> str:
        """The words for its layout."""
        strategy, layout, *_ = self.configuration
        return layout_in_words(layout, strategy, self.threads)


def words(tables: Tables, with_tasks: bool = True) -> dict[str, str]:
    """Return the words for each configuration of an experiment, by all names that it has.

    They tell of strategy, variant and network only what tells configurations apart.

    Parameters
    ----------
    with_tasks : whether they tell the dataset and the workload, if there are several.
    """
    frame = tables["configurations"]
    parts = list(Configuration._fields)
    threads = _threads(tables)
    ends = pd.unique(tables["ladder"][["before", "after"]].to_numpy().ravel())
    rows = frame[parts].drop_duplicates().itertuples(index=False, name=None)
    trained = [Configuration(*row) for row in rows]
    in_ladders = [Configuration(*[*name.split(), NATIVE][: len(parts)]) for name in ends]
    every = {each: _Named(each, threads.get(each, 1)) for each in (*trained, *in_ladders)}
    # What only ladders have makes no other name longer.
    alone = [every[each] for each in trained]
    found = {
        str(each): _told(named, alone if each in trained else list(every.values()))
        for each, named in every.items()
    }
    steps, fitted = trained_by_steps(tables), set(fitted_workloads(tables))
    labels = (
        labelled(frame, tables["runs"])["label"],
        with_labels(frame, steps)["label"],
        with_labels(frame, tables)["label"],
    )
    for row, short, by_steps, long in zip(frame.to_dict("records"), *labels, strict=True):
        named = every[Configuration(*(row[part] for part in parts))]
        text, is_fit = found[str(named.configuration)], row["workload"] in fitted
        # A fit makes no name longer than its own.
        tasks = varying_tasks(tables if is_fit else steps) if with_tasks else []
        of = ", ".join(quoted(row[key]) for key in tasks)
        found[short] = text
        found |= dict.fromkeys([long, *[by_steps] * (not is_fit)], _also(text, of))
    return {quoted(name)[1:-1]: text for name, text in found.items()}


def varying_tasks(tables: Tables) -> list[str]:
    """Return those of `dataset` and `workload` of which there are several."""
    return [key for key in ("dataset", "workload") if tables["runs"][key].nunique() > 1]


def _also(text: str, more: str) -> str:
    """Add something to what a text has in brackets."""
    if not more:
        return text
    return f"{text[:-1]}, {more})" if text.endswith(")") else f"{text} ({more})"


def _threads(tables: Tables) -> dict[Configuration, int]:
    """Return the cores of each process of a configuration, if processes differ in them."""
    found = {}
    for prefix in ("", "reference_"):
        columns = [f"{prefix}{part}" for part in (*Configuration._fields, "cores")]
        for *names, cores in tables["speedup"][columns].itertuples(index=False, name=None):
            if pd.notna(cores):
                configuration = Configuration(*names)
                found[configuration] = int(cores) // Layout.parse(configuration.layout).ranks
    return found if len(set(found.values())) > 1 else {}


def _told(named: _Named, every: list[_Named]) -> str:
    """Describe a configuration, and in brackets what tells it from others of equal layout."""
    alike = [each.configuration for each in every if each.base == named.base]
    mine = named.configuration
    differ = [
        part for part in ("strategy", "variant", "network")
        if len({getattr(each, part) for each in alike}) > 1
    ]  # fmt: skip
    told = {
        "strategy": strategy_in_words(mine.strategy),
        "variant": quoted(mine.variant),
        "network": f"over {quoted(mine.network)}",
    }
    return f"{named.base} ({', '.join(told[part] for part in differ)})" if differ else named.base


def name_in_words(name: str, named: Mapping[str, str]) -> str:
    """Return the words for one configuration, or its name if there are none."""
    return named.get(quoted(name)[1:-1], name)


def say(text: str, named: Mapping[str, str]) -> str:
    """Put words in place of the names of configurations, and of our terms.

    Parameters
    ----------
    text : of a finding.
    named : the result of `words`.
    """
    return "".join(_pieces(text, named))


def _pieces(text: str, named: Mapping[str, str]) -> Iterator[str]:
    # What stands between backticks is at odd places, and a text follows it.
    parts, before = text.split("`"), ""
    for place, part in enumerate(parts):
        told = named.get(part) if place % 2 else None
        if not place % 2:
            part = _TERM.sub(lambda term: _TERMS[term[1]], _MATCHES.sub(")", part))
        elif told is None:
            part = f"`{part}`"
        else:
            is_subject = not _NO_SUBJECT.search(before)
            following = parts[place + 1] if is_subject and not told.startswith("one ") else ""
            if verb := _VERB.match(following):
                parts[place + 1] = f" {_PLURAL[verb[1]]}{following[verb.end() :]}"
            part = told if before else f"{told[0].upper()}{told[1:]}"
        before += part
        yield part
