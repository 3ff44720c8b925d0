"""Times of one node and of a link between two nodes, from which the cost model predicts.

`read` takes these times from calibration.json. Its schema is `schemas/calibration.schema.yaml`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json, read_schema
from escala.runtime.layout import Layout

SCHEMA = Path(__file__).resolve().parents[3] / "schemas" / "calibration.schema.yaml"
#: Version of the schema, and the fewest repeats that a calibration may have.
FORMAT, LEAST_REPEATS = 2, 2
#: Probability that intervals of predictions cover.
LEVEL = 0.9
#: The network of ranks on one node.
LOCAL = "local"
#: Standard deviation of the logarithm of the model's error with several ranks. It is estimated from
#: the part of the errors beyond the intervals, of 24 predictions on one node
#: (docs/decisions/predictions.md).
MODEL_DEVIATION = 0.05
#: The most ranks with which a prediction has an interval. Predictions of two ranks were compared
#: with measured times, on one node and on two (docs/decisions/predictions.md). Predictions for four
#: nodes of the lab were 17 to 55 % too short, but these nodes shared two cores.
VALIDATED_RANKS = 2
#: Bytes of payload and of a whole frame on Ethernet. IPv4, TCP and the timestamps of TCP take 20 +
#: 20 + 12 of 1500 bytes (RFC 791, RFC 9293, RFC 7323). Preamble, header, check sequence and gap add
#: 8 + 14 + 4 + 12 (IEEE 802.3).
_PAYLOAD, _FRAME = 1500 - 52, 1500 + 38


@dataclass(frozen=True)
class Network:
    """The link of a node.

    Attributes
    ----------
    bits_per_second : rate of the payload, in each direction; None if nothing limits it.
    latency_seconds : time of the smallest message between two ranks; None if unknown.
    source : origin of these values, such as a standard.
    """

    name: str
    bits_per_second: float | None
    latency_seconds: float | None
    source: str

    @property
    def seconds_per_byte(self) -> float:
        return 8 / self.bits_per_second if self.bits_per_second else 0.0


def payload(bits_per_second: float) -> float:
    """Return the rate of the payload of TCP on an Ethernet of some rate."""
    return bits_per_second * _PAYLOAD / _FRAME


#: Networks of a known rate. Their latency is unknown: the latency of a calibrated network is used.
PRESETS = {
    network.name: network
    for network in (
        Network("100mbit", payload(100e6), None, "IEEE 802.3u, TCP payload"),
        Network("1gbit", payload(1e9), None, "IEEE 802.3ab, TCP payload"),
        Network("10gbit", payload(10e9), None, "IEEE 802.3ae, TCP payload"),
        # 8 of 10 bits are data.
        Network("infiniband-40gbit", 40e9 * 8 / 10, None, "InfiniBand QDR 4x, 8b/10b code"),
    )
}


# Compared by identity, so that it can be a key of `functools.lru_cache`.
@dataclass(frozen=True, eq=False)
class CollectiveTimes:
    """Times of one operation of a library.

    Attributes
    ----------
    sizes : bytes of a rank's tensor before the operation, of shape (sizes,).
    seconds : time of a call while ranks do nothing else, of shape (sizes, repeats).
    deviation : factor by which the times of the predicted run differ from the measured times. It is
        1 except in a resample.
    """

    library: str
    operation: str
    network: str
    layout: Layout
    sizes: np.ndarray
    seconds: np.ndarray
    deviation: float = 1.0

    @property
    def measured_with(self) -> tuple[str, str, Layout]:
        """The library, network and layout. Their operations were timed in the same repeats."""
        return self.library, self.network, self.layout


@dataclass(frozen=True)
class StepTimes:
    """Times of steps of one process that has the node to itself.

    Attributes
    ----------
    rows : rows of a step.
    cores : cores of the process.
    means : mean seconds of a step, of shape (repeats,).
    relative_seconds : seconds of each step divided by the mean of its repeat, in increasing order,
        of shape (steps,).
    """

    rows: int
    cores: int
    means: np.ndarray
    relative_seconds: np.ndarray


@dataclass(frozen=True)
class Contention:
    """How many times longer a step takes while the other ranks compute their steps.

    Ranks on different nodes have a contention too, if nodes share cores, memory or a cache.

    Attributes
    ----------
    library : library of the ranks. No collective is called while contention is measured.
    rows, cores : as in `StepTimes`.
    processes : number of processes that compute at the same time on each node.
    ratios : a ratio for each round of blocks, of shape (rounds,).
    """

    library: str
    rows: int
    cores: int
    processes: int
    ratios: np.ndarray


@dataclass(frozen=True)
class ExchangeTimes:
    """How much longer a step takes if ranks exchange their gradients in it.

    Attributes
    ----------
    network : between nodes; `LOCAL` on one node.
    rows, cores : rows and cores of a rank, as in `StepTimes`.
    seconds : additional seconds for each round of blocks, of shape (rounds,).
    """

    library: str
    network: str
    layout: Layout
    rows: int
    cores: int
    seconds: np.ndarray


@dataclass(frozen=True)
class Gradient:
    """The gradient of one variable.

    Attributes
    ----------
    shape : shape of the variable.
    item_bytes : bytes of a number.
    ready : fraction of a rank's computing, from 0 to 1, that is done when the gradient is known.
    factor_rows : rows that the dense layer of this kernel receives for one row of the model; None
        if the gradient is not exchanged as factors.
    sparse_rows : rows of the variable that one row of the model reads; None if it reads all rows.
    """

    name: str
    shape: tuple[int, ...]
    item_bytes: int = 4
    ready: float = 1.0
    factor_rows: int | None = None
    sparse_rows: int | None = None

    @property
    def numbers(self) -> int:
        return int(np.prod(self.shape, dtype=int))


@dataclass(frozen=True)
class Overheads:
    """Seconds of a run outside its training steps, each of shape (repeats,).

    Attributes
    ----------
    start : seconds from the start of the process to the first step, with building and compiling.
    evaluation_per_row : seconds of one row of the validation or the test side.
    end : seconds from the last step to the end, with saving.
    """

    start: np.ndarray
    evaluation_per_row: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class WorkTimes:
    """The gradients of a model, and the times of its training.

    Attributes
    ----------
    update : seconds of a step after its last gradient, of shape (repeats,); `steps` contain these
        seconds. None: the update counts as computing, so computing hides more of an exchange.
    deviation : as in `CollectiveTimes`.
    """

    gradients: tuple[Gradient, ...]
    steps: tuple[StepTimes, ...]
    contention: tuple[Contention, ...] = ()
    exchanges: tuple[ExchangeTimes, ...] = ()
    update: np.ndarray | None = None
    overheads: Overheads | None = None
    deviation: float = 1.0


@dataclass(frozen=True)
class StartTimes:
    """How much longer several ranks take to start and to end than one process.

    Attributes
    ----------
    network : between nodes; `LOCAL` on one node.
    seconds : additional seconds of each run, of shape (runs,).
    """

    library: str
    network: str
    layout: Layout
    seconds: np.ndarray


# Compared by identity, as `CollectiveTimes`.
@dataclass(frozen=True, eq=False)
class Calibration:
    """Measured times of a machine and its networks.

    Attributes
    ----------
    bytes_per_second : rate at which one core copies memory, of shape (repeats,). With one process,
        no network is faster than this.
    operations_per_second : floating-point operations of a product of matrices on one core, of shape
        (repeats,).
    drift : times of a step in other minutes of the calibration, divided by the time in `StepTimes`,
        of shape (runs,); empty if not measured.
    model_deviation : standard deviation of the logarithm of the model's error with several ranks.
    programs : as in the calibration file; see `escala.analysis.cost_model.programs`.
    """

    cores_per_node: int
    bytes_per_second: np.ndarray
    operations_per_second: np.ndarray
    networks: Mapping[str, Network]
    collectives: tuple[CollectiveTimes, ...]
    works: Mapping[str, WorkTimes]
    drift: np.ndarray = field(default_factory=lambda: np.ones(0))
    starts: tuple[StartTimes, ...] = ()
    model_deviation: float = MODEL_DEVIATION
    programs: Mapping[str, Mapping] = field(default_factory=dict)

    def network(self, name: str) -> Network:
        """Return a network that was calibrated, or a preset one.

        Raises
        ------
        InputError : no calibrated or preset network has this name.
        """
        networks = PRESETS | self.networks
        if name not in networks:
            raise InputError("network", name, "is unknown", f"choose one of {', '.join(networks)}")
        return networks[name]


def read(path: Path) -> Calibration:
    """Return a calibration from its JSON file.

    Raises
    ------
    InputError : the file is missing, is not JSON, or does not fit the schema.
    """
    try:
        content = read_json(path)
    except FileNotFoundError:
        remedy = f"name another file, or make it: {call('run calibration')}"
        raise InputError(path, None, "no such file", remedy) from None
    except ValueError as error:
        raise InputError(path, str(error), "is not JSON", "calibrate again") from error
    return parse(content, path)


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(read_schema(SCHEMA))


def parse(content: Any, where: object = "calibration") -> Calibration:
    """Return a calibration from the content of its file.

    Raises
    ------
    InputError : a key is unknown or missing, or a value is not allowed.
    """
    error = best_match(_validator().iter_errors(content))
    if error is not None:
        raise InputError(
            where,
            error.instance,
            f"{'.'.join(map(str, error.absolute_path)) or '(top level)'}: {error.message}",
            f"calibrate again: {call('run calibration')}, with --experiment FILE; "
            "schemas/calibration.schema.yaml has the form",
        )
    core = content["core"] or {"bytes_per_second": (), "operations_per_second": ()}
    return Calibration(
        content["cores_per_node"],
        np.array(core["bytes_per_second"], float),
        np.array(core["operations_per_second"], float),
        {
            name: Network(
                name, network["bits_per_second"], network["latency_seconds"], "calibrated"
            )
            for name, network in content["networks"].items()
        },
        tuple(_collective(times, content["networks"], where) for times in content["collectives"]),
        {name: _work(name, work, where) for name, work in content["works"].items()},
        np.array(content.get("drift", ()), float),
        tuple(_build(StartTimes, start, "seconds") for start in content.get("starts", ())),
        content.get("model_deviation", MODEL_DEVIATION),
        content.get("programs", {}),
    )


def _build(dataclass_: type, content: Mapping, array: str) -> Any:
    """Return a dataclass from a JSON object. The value of the key `array` becomes an array."""
    values = dict(content) | {array: np.array(content[array], float)}
    if "layout" in content:
        values["layout"] = Layout.parse(content["layout"])
    return dataclass_(**values)


def _collective(content: dict, networks: Mapping, where: object) -> CollectiveTimes:
    layout = Layout.parse(content["layout"])
    network = content["network"]
    if (layout.nodes == 1) != (network == LOCAL) or network not in {LOCAL, *networks}:
        raise InputError(
            where,
            network,
            f"collectives: is not the network of {layout}",
            f"`{LOCAL}` is the network of one node, and `networks` has those of several nodes",
        )
    times = sorted(content["times"], key=lambda time: time["bytes"])
    sizes, seconds = ([time[key] for time in times] for key in ("bytes", "seconds"))
    if len({len(repeats) for repeats in seconds}) > 1:
        raise InputError(
            where,
            [len(repeats) for repeats in seconds],
            "collectives: the sizes of one entry have different numbers of repeats",
            "measure every size in every repeat",
        )
    return CollectiveTimes(
        content["library"],
        content["operation"],
        network,
        layout,
        np.array(sizes, float),
        np.array(seconds, float),
    )


def _work(name: str, content: dict, where: object) -> WorkTimes:
    counts = Counter((steps["rows"], steps["cores"]) for steps in content["steps"])
    (rows, cores), number = counts.most_common(1)[0]
    if number > 1:
        raise InputError(
            where,
            [rows, cores],
            f"steps: {name} has two entries of {rows} rows with the same cores",
            "join their repeats",
        )
    overheads, update = content["overheads"], content["update_seconds"]
    steps = []
    for times in content["steps"]:
        repeats = [np.array(seconds, float) for seconds in times["seconds"]]
        means = np.array([seconds.mean() for seconds in repeats])
        relative = np.sort(np.concatenate([seconds / seconds.mean() for seconds in repeats]))
        steps.append(StepTimes(times["rows"], times["cores"], means, relative))
    return WorkTimes(
        tuple(
            Gradient(**gradient | {"shape": tuple(gradient["shape"])})
            for gradient in content["gradients"]
        ),
        tuple(steps),
        tuple(_build(Contention, ratios, "ratios") for ratios in content["contention"]),
        tuple(_build(ExchangeTimes, times, "seconds") for times in content.get("exchanges", ())),
        None if update is None else np.array(update, float),
        overheads
        and Overheads(
            **{
                key.removesuffix("_seconds"): np.array(values, float)
                for key, values in overheads.items()
            }
        ),
    )
