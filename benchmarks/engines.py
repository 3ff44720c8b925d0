"""Compare a network in Escala with programs that train the same one, in one experiment.

    snakemake --cores 2 --configfile experiments/engines/virus-cnn.yaml
    python -m benchmarks.engines results/virus-cnn virus-cnn-loop torch-ddp 1x1 plain

Prints for each configuration the milliseconds of a step in the median epoch after the first, and
its ratio to the configuration that is named, by matches of one session and repeat, with 95 %
intervals. The page has ratios within a workload.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

from benchmarks.common import interval
from escala.analysis.statistics import ratio_interval
from escala.record.comparable import matched

WORDS = ("workload", "strategy", "layout", "variant")


def milliseconds(run: dict) -> float:
    """Return the time of a step. Frameworks compile in the first epoch."""
    epochs = run["epochs"][1:] or run["epochs"]
    return 1000 * statistics.median(epoch["train_seconds"] / epoch["steps"] for epoch in epochs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="folder of the experiment's results")
    for word in WORDS:
        parser.add_argument(word, help="of the reference")
    arguments = parser.parse_args()
    found = defaultdict(list)
    for file in sorted(arguments.results.glob("runs/**/rep*/run.json")):
        run = json.loads(file.read_text())
        name = tuple(run[word] for word in WORDS)
        if run["status"] == "ok":
            found[name].append(run)
        else:
            print(*name, f"is {run['status']}: {run['reason']}")
    reference = found.get(tuple(getattr(arguments, word) for word in WORDS))
    if not reference:
        parser.error("no run of the reference ended ok")
    row = "{:16}{:14}{:8}{:18}{:>24}{:>26}".format
    print(row(*WORDS, "ms a step", "ratio"))
    for name, runs in sorted(found.items()):
        matches = matched(runs, reference)
        ratios = [
            milliseconds(run) / milliseconds(other)
            for run, other in zip(matches.runs, matches.references, strict=True)
        ]
        estimate, low, high = ratio_interval(ratios)
        between = "" if low is None else f" ({low:.3f} to {high:.3f})"
        ratio = "" if estimate is None else f"{estimate:.3f}{between}"
        print(row(*name, interval([*map(milliseconds, runs)], 1), ratio), *set(matches.refused))


if __name__ == "__main__":
    main()
