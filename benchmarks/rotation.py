"""Compare ways to choose the nodes of runs, on simulated nodes that differ.

A cluster has nodes whose times differ by a few percent (a normal coefficient of variation), and a
job has four of them. A run of n nodes waits for its slowest node, and has noise of its own. Each
way measures the ratio of 4 nodes to 1, and that of 2 nodes to 1, in some repeats:

rotated    as inside a job (`escala.runtime.allocation.nested`): nodes are nested, and each repeat
           begins with the next one.
fixed      the same first nodes of the job in every repeat.
random     other nodes of the cluster for every run, as in jobs of their own.

The true ratio is that of the whole cluster: the mean of the times of n nodes drawn from it, by that
of one node. Printed: the mean error of the estimates, the part of the 95 % intervals that have the
true ratio, and their median width.

example:
  uv run python -m benchmarks.rotation
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

from escala.analysis.statistics import ratio_interval
from escala.runtime.allocation import nested

NODES = 4
DIFFERENCES = (0.0, 0.01, 0.02, 0.05)
NOISE = 0.01
REPEATS = 8
CLUSTER = 256

#: The nodes of a run: of a cluster and of a job, how many, in which repeat.
Way = Callable[[np.random.Generator, Sequence[int], int, int], Sequence[int]]
WAYS: dict[str, Way] = {
    "rotated": lambda generator, job, count, repeat: nested(job, count, repeat),
    "fixed": lambda generator, job, count, repeat: nested(job, count, 1),
    "random": lambda generator, job, count, repeat: generator.choice(CLUSTER, count, replace=False),
}


def true_ratio(speeds: np.ndarray, count: int, generator: np.random.Generator) -> float:
    """Return the mean time of `count` nodes drawn from the cluster to that of one."""
    drawn = generator.permuted(np.tile(speeds, (2_000, 1)), axis=1)[:, :count]
    return float(np.mean(drawn.max(axis=1)) / np.mean(speeds)) / count


def measured(
    speeds: np.ndarray, way: Way, count: int, repeats: int, generator: np.random.Generator
) -> tuple[float, float, float]:
    """Return estimate, low and high of the ratio of `count` nodes to one.

    Parameters
    ----------
    speeds : times of the cluster's nodes, shape (CLUSTER,).
    """
    job = list(generator.choice(CLUSTER, NODES, replace=False))

    def seconds(nodes: int, repeat: int) -> float:
        slowest = speeds[list(way(generator, job, nodes, repeat))].max()
        return slowest / nodes * np.exp(generator.normal(0, NOISE))

    return ratio_interval(
        [seconds(count, repeat) / seconds(1, repeat) for repeat in range(1, repeats + 1)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--draws", type=int, default=1000, help="clusters of each row; default: %(default)s"
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, help="default: %(default)s")
    arguments = parser.parse_args()
    row = "{:>8}{:>8}  {:10}{:>12}{:>10}{:>8}".format
    print(row("nodes", "differ", "way", "mean error", "covered", "width"))
    generator = np.random.default_rng(1)
    for count in (2, NODES):
        for difference in DIFFERENCES:
            found: dict[str, list] = {name: [] for name in WAYS}
            for _ in range(arguments.draws):
                speeds = np.exp(generator.normal(0, difference, CLUSTER))
                truth = true_ratio(speeds, count, generator) if difference else 1 / count
                for name, way in WAYS.items():
                    estimate, low, high = measured(speeds, way, count, arguments.repeats, generator)
                    found[name].append(
                        (estimate / truth - 1, low <= truth <= high, (high - low) / truth)
                    )
            for name, values in found.items():
                error, covered, width = zip(*values, strict=True)
                print(
                    row(
                        count,
                        f"{100 * difference:.0f} %",
                        name,
                        f"{100 * np.mean(error):+.1f} %",
                        f"{100 * np.mean(covered):.0f} %",
                        f"{100 * np.median(width):.1f} %",
                    )
                )


if __name__ == "__main__":
    main()
