"""Tell what a slower link costs: the same configuration over several networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from escala.analysis.comparable import CONFIGURATION
from escala.report.findings.best_use import seconds_per_epoch
from escala.report.findings.compared import interval, rows_of
from escala.report.findings.words import Finding, Tables, a, quoted, with_labels
from escala.report.tables.views import unit

POSITION = 31
SECTION = "why"
QUESTION = "links"
ASKS = "What does a slower link cost?"

_NETWORK = CONFIGURATION.index("network")


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Compare each configuration with itself over the network on which it is fastest.

    The ratio is that of matches where the other network is a reference, and otherwise that of the
    median times, without an interval.
    """
    ratios = {
        (row.names, row.reference_names): row.epochs
        for row in rows_of(with_labels(tables["speedup"], tables))
        if row.kind != "unavailable"
    }
    networks: defaultdict[tuple, dict] = defaultdict(dict)
    for names, seconds in seconds_per_epoch(tables).items():
        networks[names[:_NETWORK] + names[_NETWORK + 1 :]][names] = seconds
    for (dataset, workload, *configuration), times in networks.items():
        fastest = min(times, key=times.__getitem__)
        for names in sorted(times.keys() - {fastest}):
            ratio = ratios.get((names, fastest))
            found = f"{ratio.value if ratio else times[names] / times[fastest]:.2f}"
            yield Finding(
                f"Over {quoted(names[_NETWORK])}, {a(unit(tables, workload))} of "
                f"{quoted(' '.join(configuration))} takes {found} times as long"
                f"{interval(ratio) if ratio else ''} as over {quoted(fastest[_NETWORK])}.",
                "speedup",
                "speedup",
                task=f"{dataset} {workload} ",
            )
