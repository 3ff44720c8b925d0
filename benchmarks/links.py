"""Compare the measured rates of the lab's links with the rates that were set.

    python scripts/lab.py up && python benchmarks/links.py 10mbit 100mbit 1gbit native

Both directions between two nodes are measured in turn; the links are native afterwards.
"""

from __future__ import annotations

import argparse
import statistics

from escala import cli
from escala.lab import network
from escala.lab.network import measure, shape


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rates", nargs="+", metavar="RATE")
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    print("| asked | Mbit/s: median | least | most | of what was asked | ping, ms: median |")
    print("| --- | --- | --- | --- | --- | --- |")
    try:
        for rate in arguments.rates:
            shape(rate)
            print(_row(rate, arguments.times), flush=True)
    finally:
        shape(network.NATIVE)


def _row(rate: str, times: int) -> str:
    ways = [("n1", "n2"), ("n2", "n1")]
    found = [measure(*ways[number % 2]) for number in range(times)]
    speeds = [one["mbit_per_second"] for one in found]
    latency = statistics.median(one["latency_ms"] for one in found)
    median = statistics.median(speeds)
    shaped = rate != network.NATIVE
    fraction = f"{median * 1e6 / network.bits_per_second(rate):.3f}" if shaped else "–"
    cells = [rate, *(f"{speed:.4g}" for speed in (median, min(speeds), max(speeds)))]
    return f"| {' | '.join([*cells, fraction, f'{latency:.3f}'])} |"


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
