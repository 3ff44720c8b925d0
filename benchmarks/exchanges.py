"""Time a step with each exchange of the large dense layer, by interleaved pairs.

    python benchmarks/exchanges.py --layout 1x2 --rows 32 --convolution lookup-table

Real ranks train `virus-cnn` on random rows with each exchange in turn, in one order and then in the
other. A turn gives the mean time of some steps on the slowest rank, and a pair is a turn of an
exchange and the turn of allreduce in the same round. `sharded, gathered at once` gathers the kernel
at the end of a step, and not at the beginning of the next one. `one process` is rank 0 with the
rows of all ranks, while the others wait.

Prints for each exchange the milliseconds of a step and the ratio to allreduce, the median over the
rounds with its 95 % interval, and the part of a step that the formulas in
`escala/strategies/costs.py` estimate to depend on the exchange.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from escala import cli
from escala.analysis.statistics import median_interval
from escala.core.files import read_json, write_json
from escala.data.base import Spec
from escala.runtime import launch
from escala.runtime.layout import Layout
from escala.runtime.placement import places
from escala.strategies import STRATEGIES, Strategy, costs
from escala.strategies.knobs import of_strategies
from escala.strategies.shared.place import Place

CLASSES, LEARNING_RATE = 5, 0.0001
AT_ONCE, ONE_PROCESS = "sharded, gathered at once", "one process"
WAYS = (*costs.EXCHANGES, AT_ONCE, ONE_PROCESS)


def built(
    way: str, strategy: Strategy, knobs: dict, asked: dict, ranks: int
) -> tuple[Callable, list[int]]:
    """Return the step of a way, as `escala.training.train` builds it, and its largest kernel."""
    from escala.strategies.single import Single
    from escala.training import step as steps
    from escala.training.state import State
    from escala.workloads.virus_cnn import model as virus_cnn

    class AtOnce(State):
        """Gathers a kernel when its parts are updated."""

        def begin_step(self, rows):
            pass

        def update(self, gradients):
            updated = super().update(gradients)
            super().begin_step(0)
            return updated

    if way == ONE_PROCESS:
        strategy, ranks = Single(knobs, strategy.place), 1
    model = virus_cnn.network(asked["length"], CLASSES, asked["convolution"])
    optimizer = virus_cnn.optimizer({}, LEARNING_RATE, {"optimizer": asked["optimizer"]})
    request = {
        "knobs": knobs | {"dense_exchange": costs.SHARDED if way == AT_ONCE else way},
        "link_bits_per_second": None,
        "global_batch": asked["rows"] * strategy.place.processes,
        "train_rows": asked["rows"] * strategy.place.processes,
    }
    exchanges = steps.exchanges(model, optimizer, request, strategy, ranks, virus_cnn.input_of)
    parts = steps.divided(model, exchanges, strategy, ranks, request["train_rows"])
    factored = [layer.kernel for layer, each in exchanges.items() if each != costs.ALLREDUCE]
    state = (AtOnce if way == AT_ONCE else State)(
        model, optimizer, parts, strategy, factored=factored
    )
    compute = steps.computing(
        model,
        lambda targets, outputs: virus_cnn.row_losses(targets, outputs, {}),
        steps.most_probable_is_right,
        steps.methods(
            model, exchanges, parts, strategy, asked["input_gradient"], virus_cnn.input_of
        ),
        [],
        strategy.summed,
    )
    specs = SimpleNamespace(
        inputs=[Spec("codes", (asked["length"],), "uint8")], targets=Spec("labels", (), "int64")
    )
    state.broadcast()
    compute = steps.with_gathered(state, compute)
    largest = max((variable.shape.as_list() for variable in model.variables), key=np.prod)
    return steps.train_step(state, strategy, specs, compute, strategy.exchange), largest


def turn(step: Callable, arrays: tuple, count: int) -> float:
    """Return the mean seconds of some steps on the same rows."""
    start = time.perf_counter()
    for _ in range(count):
        step([arrays])
    return (time.perf_counter() - start) / count


def of_rank(asked: dict) -> None:
    """Be a rank: time every way in each round; rank 0 writes the seconds of the slowest rank."""
    from escala.strategies.base import set_threads

    place = Place.of(asked, launch.process_of_environment())
    os.sched_setaffinity(0, place.cores)
    set_threads(asked["knobs"]["threads"])
    strategy = STRATEGIES[asked["strategy"]](asked["knobs"], place)
    _, ranks = strategy.start()
    steps = {}
    for way in asked["ways"]:
        steps[way], kernel = built(way, strategy, asked["knobs"], asked, ranks)
    random = np.random.default_rng(place.process)

    def arrays(rows: int) -> tuple:
        codes = random.integers(1, 5, (rows, asked["length"]), dtype=np.uint8)
        labels = random.integers(0, CLASSES, rows)
        weights, divisor = np.ones(rows, np.float32), np.float32(asked["rows"] * ranks)
        return codes, labels, weights, divisor

    own, all_rows = arrays(asked["rows"]), arrays(asked["rows"] * ranks)
    found = {way: [] for way in steps}
    for number in range(asked["rounds"] + 1):
        for way in list(steps)[:: 1 if number % 2 == 0 else -1]:
            strategy.total(np.zeros(1))
            seconds = np.zeros(ranks)
            if way != ONE_PROCESS:
                seconds[place.process] = turn(steps[way], own, asked["steps"])
            elif place.process == 0:
                seconds[0] = turn(steps[way], all_rows, asked["steps"])
            found[way].append(strategy.total(seconds).max())
    if place.process == 0:
        # The first round traces and compiles.
        seconds = {way: times[1:] for way, times in found.items()}
        write_json(Path(asked["result"]), {"seconds": seconds, "kernel": kernel})
    strategy.stop()


def measured(arguments: argparse.Namespace, folder: Path) -> dict:
    """Start the ranks; return the `seconds` of each way in each round, and the largest `kernel`."""
    layout, strategy = Layout.parse(arguments.layout), STRATEGIES[arguments.strategy]
    knobs = {name: knob.default for name, knob in of_strategies().items()}
    knobs |= {"threads": {"intra_op": 1, "inter_op": arguments.inter_op}}
    knobs |= {"cycle_time_ms": arguments.cycle_time_ms, "eager_limit_mib": arguments.eager_limit}
    started = launch.survey(layout, strategy, arguments.interface, "auto")
    asked = vars(arguments) | {
        "knobs": knobs,
        "places": places(layout, strategy, knobs, started.nodes),
        "result": str(folder / "result.json"),
    }
    write_json(folder / "request.json", asked)
    environment = launch.environment(strategy.name, knobs, started)
    command = [sys.executable, __file__, "--as-rank", str(folder / "request.json")]
    with launch.command_line(started, strategy, asked["places"], command) as (starting, added):
        subprocess.run(starting, env=environment | added, check=True)
    return read_json(folder / "result.json")


def estimated(way: str, kernel: list[int], arguments: argparse.Namespace) -> float | None:
    """Return the seconds of a step that depend on the exchange of the largest kernel."""
    exchange = costs.SHARDED if way == AT_ONCE else way
    if exchange not in costs.EXCHANGES:
        return None
    layout, strategy = Layout.parse(arguments.layout), STRATEGIES[arguments.strategy]
    product = costs.Product(*kernel, arguments.rows * layout.ranks, data_bytes=arguments.length)
    given = json.loads(arguments.rates)
    rates = costs.rates(
        strategy.mpi, layout.nodes, cycle_time_ms=arguments.cycle_time_ms, measured=given
    )
    return costs.seconds(exchange, product, layout.ranks, rates)


def report(found: dict, arguments: argparse.Namespace) -> None:
    seconds = found["seconds"]
    print(
        f"{arguments.strategy} {arguments.layout}, {arguments.rows} rows a rank, length "
        f"{arguments.length}, {arguments.convolution}, {arguments.optimizer} optimizer, "
        f"{arguments.rounds} rounds of {arguments.steps} steps\n"
    )
    print("| exchange | ms a step | to allreduce | formulas, ms |\n| --- | --- | --- | --- |")
    for way, times in seconds.items():
        pairs = zip(times, seconds.get(costs.ALLREDUCE, times), strict=True)
        cells = [way, _spread([1000 * each for each in times], 2)]
        cells += [_spread([one / other for one, other in pairs], 3)]
        estimate = estimated(way, found["kernel"], arguments)
        cells += ["–" if estimate is None else f"{1000 * estimate:.2f}"]
        print(f"| {' | '.join(cells)} |")


def _spread(values: list[float], digits: int) -> str:
    estimate, low, high = median_interval(values)
    between = "" if low is None else f" ({low:.{digits}f}–{high:.{digits}f})"
    return f"{estimate:.{digits}f}{between}"


def main() -> None:
    if sys.argv[1:2] == ["--as-rank"]:
        of_rank(read_json(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategy", default="horovod-mpi")
    parser.add_argument("--layout", default="1x2")
    parser.add_argument("--interface", help="between nodes")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=32, help="of a rank (32)")
    parser.add_argument("--convolution", default="layers")
    parser.add_argument("--optimizer", default="fused")
    parser.add_argument("--input-gradient", default="tensorflow")
    parser.add_argument("--inter-op", type=int, default=1)
    parser.add_argument("--cycle-time-ms", type=float)
    parser.add_argument("--eager-limit", type=float, help="in MiB")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20, help="of each exchange in a round (20)")
    parser.add_argument("--rates", default="{}", help="JSON, as of the knob `exchange_rates`")
    arguments = parser.parse_args()
    if min(arguments.rows, arguments.rounds, arguments.steps) < 1:
        parser.error("--rows, --rounds and --steps: one at least")
    with tempfile.TemporaryDirectory() as folder:
        found = measured(arguments, Path(folder))
    report(found, arguments)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
