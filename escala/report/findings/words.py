"""Words of findings: quoted names and lists, and configurations by name or in words.

Readers of the first screen know no names of configurations and no terms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from escala.analysis.statistics import MATCHES_FOR_INTERVAL
from escala.analysis.verdicts import Ratio
from escala.experiment.runs import NATIVE, Configuration, layout_in_words, strategy_in_words
from escala.report.tables.views import add_labels, fit_workloads, is_among, without_fits
from escala.runtime.layout import Layout

#: The most letters of a reason in a sentence.
REASON_LETTERS = 120
#: The most names in a sentence.
MOST_NAMES = 3
#: Plural verbs, for a name that stands for several processes.
_PLURAL = {
    "takes": "take", "spends": "spend", "has": "have", "trains": "train", "differs": "differ",
    "does": "do", "took": "took", "is": "are", "makes": "make",
    "waits": "wait",
}  # fmt: skip
Tables = Mapping[str, pd.DataFrame]


class Comparison(NamedTuple):
    """Two things that a sentence compares, as the first screen draws them.

    Attributes
    ----------
    between : both in words, the first of which takes `ratio` times as much as the second.
    of : what is compared, such as `step time`.
    equal : the value of `ratio` if both take as much: 1, or 0 for a difference.
    """

    between: str
    of: str
    ratio: Ratio
    equal: float = 1.0


@dataclass(frozen=True)
class Finding:
    """A sentence, with its evidence.

    Attributes
    ----------
    text : a clause, or the sentence that `findings.write` makes of it. Names and reasons are code
        between backticks.
    table : name of the table that holds its evidence.
    figure : name of a figure that shows the evidence, or None.
    first : whether the first screen always has the sentence.
    task : the `BestUse.key` of the sentence's answer; empty for a sentence without an answer.
    spoken : the sentence in words, without names of configurations.
    compares : the ratios of the sentence.
    """

    text: str
    table: str
    figure: str | None = None
    first: bool = False
    task: str = ""
    spoken: str = field(default="", compare=False)
    compares: tuple[Comparison, ...] = field(default=(), compare=False)


def with_labels(frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Add the column `label`, which names each row's configuration as far as names differ."""
    return add_labels(frame, tables["runs"], ("dataset", "workload", "variant", "network"))


def among(frame: pd.DataFrame, names: Collection[tuple]) -> pd.DataFrame:
    """Return the rows of a table whose configuration is in `names`."""
    return frame[is_among(frame, names)]


def quote(text: str, letters: int = REASON_LETTERS) -> str:
    """Quote a name from data, or the words of another program, as code on one line.

    A long text loses its middle, because the last line of a program has the cause of a failure.
    """
    line = " ".join(text.replace("`", "'").split())
    if len(line) > letters:
        begin = letters // 2
        line = f"{line[:begin]}…{line[len(line) - letters + begin + 1 :]}"
    return f"`{line}`"


def join_words(parts: Iterable[str]) -> str:
    """Join parts of a sentence: `a`, `a and b`, `a, b and c`."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def list_names(names: Collection[str], write: Callable[[str], str] = quote) -> str:
    """Join at most `MOST_NAMES` names, each written by `write`, and the number of further ones."""
    first, more = list(map(write, names))[:MOST_NAMES], len(names) - MOST_NAMES
    return join_words([*first, f"{more} more"] if more > 0 else first)


def span(numbers: pd.Series) -> str:
    """Return the smallest and the largest number, or the only one."""
    return "–".join(f"{number:.0f}" for number in sorted({numbers.min(), numbers.max()}))


def with_article(thing: str) -> str:
    """Return a thing with its indefinite article."""
    return f"an {thing}" if thing[0] in "aeiou" else f"a {thing}"


def of_or_times(ratio: float) -> str:
    """Return the word that follows a ratio: 0.7 *of* the time, and 5.9 *times* the time."""
    return "times" if round(ratio, 2) > 1 else "of"


def significant(number: float, signed: bool = False) -> str:
    """Return a number with three significant digits and without an exponent."""
    # Adding 0 turns -0 into 0.
    return np.format_float_positional(number + 0.0, 3, fractional=False, trim="-", sign=signed)


def sentence(clause: str, heading: str = "") -> str:
    """Return a clause with a capital at its start and a full stop at its end.

    Parameters
    ----------
    heading : words before the clause; a colon follows them.
    """
    text = f"{heading}: {clause}" if heading else clause
    return f"{text[0].upper()}{text[1:]}."


class Names:
    """How sentences name configurations.

    Parameters
    ----------
    words : the result of `name_in_words`, for sentences in words; without it, names are quoted.
    """

    def __init__(self, words: Mapping[str, str] | None = None):
        self._words = words

    def __call__(self, label: str) -> str:
        """Return the words for a configuration, or its quoted name without words."""
        return (self._words or {}).get(label) or quote(label)

    def subject(self, label: str, verb: str, where: str = "") -> str:
        """Return a configuration with a verb, in the plural for several processes in words.

        `where` stands between both.
        """
        name = self(label)
        is_plural = not name.startswith(("one ", "`"))
        return f"{name}{where} {_PLURAL[verb] if is_plural else verb}"

    def interval(self, ratio: Ratio) -> str:
        """Return the interval of a ratio in brackets, or with too few paired runs the range.

        Interval and range are widened by how sessions differ. Sentences with quoted names also have
        the number of paired runs.
        """
        if ratio.matches == 1:
            return ""
        ends = "–".join("unknown" if pd.isna(end) else f"{end:.2f}" for end in ratio[1:3])
        if ratio.matches < MATCHES_FOR_INTERVAL:
            return f" (range {ends}, widened)"
        return f" ({ends}, {ratio.matches} paired runs)" if self._words is None else f" ({ends})"

    def ratio(self, ratio: Ratio | None) -> str:
        """Return a ratio with its interval, a dash if it is unknown."""
        if ratio is None or pd.isna(ratio.value):
            return "–"
        return f"{ratio.value:.2f}{self.interval(ratio)}"

    def comparison(
        self, label: str, other: str, of: str, ratio: Ratio, equal: float = 1.0
    ) -> Comparison:
        """Return the comparison of two configurations by their labels."""
        return Comparison(f"{self(label)} against {self(other)}", of, ratio, equal)

    def fraction(self, ratio: Ratio, what: str) -> str:
        """Return a ratio with its interval: `0.84 of the time of … (0.80–0.88, 7 paired runs)`."""
        value = "an unknown part of"
        if not pd.isna(ratio.value):
            value = f"{ratio.value:.2f} {of_or_times(ratio.value)}"
        return f"{value} the {what}{self.interval(ratio)}"


def name_in_words(tables: Tables, with_tasks: bool = True) -> dict[str, str]:
    """Return the words for each configuration of an experiment, by each of its labels.

    The words contain strategy, variant and network only if configurations differ by them.

    Parameters
    ----------
    with_tasks : whether the words contain dataset and workload, if an experiment has several.
    """
    frame = tables["configurations"]
    parts = list(Configuration._fields)
    threads = _threads(tables)
    rows = frame[parts].drop_duplicates().itertuples(index=False, name=None)
    trained = [Configuration(*row) for row in rows]
    names_in_ladders = pd.unique(tables["ladder"][["before", "after"]].to_numpy().ravel())
    # The name of a configuration leaves out the native network.
    in_ladders = [
        Configuration(*[*name.split(), NATIVE][: len(parts)]) for name in names_in_ladders
    ]
    words_for_layouts = {
        one: layout_in_words(one.layout, one.strategy, threads.get(one, 1))
        for one in (*trained, *in_ladders)
    }
    texts = {}
    for one in words_for_layouts:
        # Configurations of ladders alone do not make other names longer.
        others = trained if one in trained else list(words_for_layouts)
        texts[str(one)] = _describe(one, words_for_layouts, others)
    steps, fitted = without_fits(tables), set(fit_workloads(tables))
    labels = (
        add_labels(frame, tables["runs"])["label"],
        with_labels(frame, steps)["label"],
        with_labels(frame, tables)["label"],
    )
    for row, short, by_steps, long in zip(frame.to_dict("records"), *labels, strict=True):
        text = texts[short] = texts[str(Configuration(*(row[part] for part in parts)))]
        is_fit = row["workload"] in fitted
        # Fits do not make the names of other workloads longer.
        varying = tasks_that_vary(tables if is_fit else steps) if with_tasks else []
        if task := ", ".join(quote(row[key]) for key in varying):
            text = f"{text[:-1]}, {task})" if text.endswith(")") else f"{text} ({task})"
        texts[long] = text
        if not is_fit:
            texts[by_steps] = text
    return texts


def tasks_that_vary(tables: Tables) -> list[str]:
    """Return `dataset` and `workload`, each if the experiment has several."""
    return [key for key in ("dataset", "workload") if tables["runs"][key].nunique() > 1]


def _threads(tables: Tables) -> dict[Configuration, int]:
    """Return the cores of each process by configuration; empty if all are the same."""
    threads = {}
    for prefix in ("", "reference_"):
        columns = [f"{prefix}{part}" for part in (*Configuration._fields, "cores")]
        for *names, cores in tables["speedup"][columns].itertuples(index=False, name=None):
            if pd.notna(cores):
                configuration = Configuration(*names)
                ranks = Layout.parse(configuration.layout).ranks
                threads[configuration] = int(cores) // ranks
    return threads if len(set(threads.values())) > 1 else {}


def _describe(
    one: Configuration,
    words_for_layouts: Mapping[Configuration, str],
    others: Sequence[Configuration],
) -> str:
    """Describe a configuration, and in brackets its differences from others of equal layout."""
    words = words_for_layouts[one]
    alike = [other for other in others if words_for_layouts[other] == words]
    texts = {
        "strategy": strategy_in_words(one.strategy),
        "variant": quote(one.variant),
        "network": f"over {quote(one.network)}",
    }
    differ = [
        text for part, text in texts.items() if len({getattr(other, part) for other in alike}) > 1
    ]
    return f"{words} ({', '.join(differ)})" if differ else words
