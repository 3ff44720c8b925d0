"""Name configurations as experiments do, or in words for readers who know no names and no terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.analysis.verdicts import Ratio
from escala.experiment.runs import NATIVE, Configuration, layout_in_words, strategy_in_words
from escala.report.findings.words import Tables, of, quote, with_labels
from escala.report.tables.views import fitted_workloads, labelled, trained_by_steps
from escala.runtime.layout import Layout

#: Verbs after a name that stands for several processes.
_PLURAL = {
    "takes": "take", "spends": "spend", "has": "have", "trains": "train", "differs": "differ"
}  # fmt: skip


class Names:
    """How sentences name configurations.

    Parameters
    ----------
    words : the result of `words`, for sentences in words; without it, names are quoted.
    """

    def __init__(self, words: Mapping[str, str] | None = None):
        self._words = words

    def __call__(self, label: str) -> str:
        """Return the words for a configuration, or its quoted name if there are none."""
        return (self._words or {}).get(label) or quote(label)

    def subject(self, label: str, verb: str) -> str:
        """Return a configuration with its verb, which follows it in number."""
        name = self(label)
        several = not name.startswith(("one ", "`"))
        return f"{name} {_PLURAL[verb] if several else verb}"

    def interval(self, ratio: Ratio) -> str:
        """Return the interval of a ratio in brackets, or with too few paired runs the range.

        Both are widened by how sessions differ. Names come with the number of paired runs.
        """
        if ratio.matches == 1:
            return ""
        ends = "–".join("unknown" if pd.isna(end) else f"{end:.2f}" for end in ratio[1:3])
        if ratio.matches < VALUES_FOR_INTERVAL:
            return f" (range {ends}, widened)"
        return f" ({ends}, {ratio.matches} paired runs)" if self._words is None else f" ({ends})"

    def ratio(self, ratio: Ratio | None) -> str:
        """Return a ratio with its interval, a dash if it is unknown."""
        if ratio is None or pd.isna(ratio.value):
            return "–"
        return f"{ratio.value:.2f}{self.interval(ratio)}"

    def fraction(self, ratio: Ratio, what: str) -> str:
        """Return a ratio with its interval: `0.84 of the time of … (0.80–0.88, 7 paired runs)`."""
        value = "an unknown part of"
        if not pd.isna(ratio.value):
            value = f"{ratio.value:.2f} {of(ratio.value)}"
        return f"{value} the {what}{self.interval(ratio)}"


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
    rows = frame[parts].drop_duplicates().itertuples(index=False, name=None)
    trained = [Configuration(*row) for row in rows]
    ends = pd.unique(tables["ladder"][["before", "after"]].to_numpy().ravel())
    in_ladders = [Configuration(*[*name.split(), NATIVE][: len(parts)]) for name in ends]
    bases = {
        one: layout_in_words(one.layout, one.strategy, threads.get(one, 1))
        for one in (*trained, *in_ladders)
    }
    # What only ladders have makes no other name longer.
    texts = {
        str(one): _describe(one, bases, trained if one in trained else list(bases)) for one in bases
    }
    steps, fitted = trained_by_steps(tables), set(fitted_workloads(tables))
    labels = (
        labelled(frame, tables["runs"])["label"],
        with_labels(frame, steps)["label"],
        with_labels(frame, tables)["label"],
    )
    for row, short, by_steps, long in zip(frame.to_dict("records"), *labels, strict=True):
        text = texts[short] = texts[str(Configuration(*(row[part] for part in parts)))]
        is_fit = row["workload"] in fitted
        # A fit makes no name longer than its own.
        varying = tasks_that_vary(tables if is_fit else steps) if with_tasks else []
        if task := ", ".join(quote(row[key]) for key in varying):
            text = f"{text[:-1]}, {task})" if text.endswith(")") else f"{text} ({task})"
        texts |= dict.fromkeys([long, *[by_steps] * (not is_fit)], text)
    return texts


def tasks_that_vary(tables: Tables) -> list[str]:
    """Return those of `dataset` and `workload` of which there are several."""
    return [key for key in ("dataset", "workload") if tables["runs"][key].nunique() > 1]


def _threads(tables: Tables) -> dict[Configuration, int]:
    """Return the cores of each process of a configuration, if processes differ in them."""
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
    mine: Configuration, bases: Mapping[Configuration, str], others: Sequence[Configuration]
) -> str:
    """Describe a configuration, and in brackets what tells it from others of equal layout.

    Parameters
    ----------
    bases : the words for the layout of each.
    """
    alike = [other for other in others if bases[other] == bases[mine]]
    texts = {
        "strategy": strategy_in_words(mine.strategy),
        "variant": quote(mine.variant),
        "network": f"over {quote(mine.network)}",
    }
    differ = [
        text for part, text in texts.items() if len({getattr(other, part) for other in alike}) > 1
    ]
    return f"{bases[mine]} ({', '.join(differ)})" if differ else bases[mine]
