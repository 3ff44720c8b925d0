"""Read a calibration from its JSON form, which `schemas/calibration.schema.yaml` describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from escala.analysis.cost_model.calibration import (
    LOCAL,
    MODEL_DEVIATION,
    Calibration,
    CollectiveTimes,
    Contention,
    ExchangeTimes,
    Gradient,
    Overheads,
    StartTimes,
    StepTimes,
    Work,
)
from escala.analysis.cost_model.networks import Network
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json, read_yaml
from escala.runtime.layout import Layout

SCHEMA = Path(__file__).resolve().parents[3] / "schemas" / "calibration.schema.yaml"
#: Version of the schema, and the fewest repeats that a calibration may have.
FORMAT, LEAST_REPEATS = 2, 2


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
            "docs/reference/calibration.md has the form",
        )
    for each in content["collectives"]:
        _check_network(each, content["networks"], where)
    for name, each in content["works"].items():
        _check_steps(name, each["steps"], where)
    core = content["core"] or {"bytes_per_second": (), "operations_per_second": ()}
    return Calibration(
        content["cores_per_node"],
        np.array(core["bytes_per_second"], float),
        np.array(core["operations_per_second"], float),
        {
            name: Network(name, each["bits_per_second"], each["latency_seconds"], "calibrated")
            for name, each in content["networks"].items()
        },
        tuple(_collective(each, where) for each in content["collectives"]),
        {name: _work(each) for name, each in content["works"].items()},
        np.array(content.get("drift", ()), float),
        tuple(_build(StartTimes, each) for each in content.get("starts", ())),
        content.get("model_deviation", MODEL_DEVIATION),
        content.get("programs", {}),
    )


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(read_yaml(SCHEMA))


def _check_network(content: dict, networks: Mapping, where: object) -> None:
    on_one_node = Layout.parse(content["layout"]).nodes == 1
    if on_one_node != (content["network"] == LOCAL) or not (
        on_one_node or content["network"] in networks
    ):
        raise InputError(
            where,
            content["network"],
            f"collectives: is not the network of {content['layout']}",
            f"`{LOCAL}` is that of one node, and `networks` holds those of several",
        )


def _check_steps(name: str, steps: list[dict], where: object) -> None:
    entries = Counter((each["rows"], each["cores"]) for each in steps)
    (rows, cores), number = entries.most_common(1)[0]
    if number > 1:
        raise InputError(
            where,
            [rows, cores],
            f"steps: {name} has two entries of {rows} rows with the same cores",
            "join their repeats",
        )


def _collective(content: dict, where: object) -> CollectiveTimes:
    times = sorted(content["times"], key=lambda each: each["bytes"])
    sizes, seconds = ([each[key] for each in times] for key in ("bytes", "seconds"))
    if len({len(each) for each in seconds}) > 1:
        raise InputError(
            where,
            [len(each) for each in seconds],
            "collectives: the sizes of one entry have unequal numbers of repeats",
            "measure every size in every repeat",
        )
    return _build(CollectiveTimes, content | {"sizes": sizes, "seconds": seconds})


def _work(content: dict) -> Work:
    overheads = content["overheads"] and {
        name.removesuffix("_seconds"): each for name, each in content["overheads"].items()
    }
    return Work(
        tuple(_build(Gradient, each) for each in content["gradients"]),
        tuple(map(_steps, content["steps"])),
        tuple(_build(Contention, each) for each in content["contention"]),
        tuple(_build(ExchangeTimes, each) for each in content.get("exchanges", ())),
        _array(content["update_seconds"]),
        overheads and _build(Overheads, overheads),
    )


def _steps(content: dict) -> StepTimes:
    repeats = [np.array(seconds, float) for seconds in content["seconds"]]
    means = np.array([seconds.mean() for seconds in repeats])
    shape = np.sort(np.concatenate([s / mean for s, mean in zip(repeats, means, strict=True)]))
    return StepTimes(content["rows"], content["cores"], means, shape)


def _array(values: list | None) -> np.ndarray | None:
    return None if values is None else np.array(values, float)


def _build(type_: type, content: Mapping) -> Any:
    """Build a dataclass from a JSON object: each value is converted to the type of its field."""
    converters = {
        "Layout": Layout.parse,
        "np.ndarray": _array,
        "np.ndarray | None": _array,
        "tuple[int, ...]": tuple,
        "tuple[tuple[int, float], ...]": lambda each: tuple(
            (e["rows"], e["seconds"]) for e in each
        ),
    }
    return type_(
        **{
            each.name: converters.get(str(each.type), lambda value: value)(content[each.name])
            for each in fields(type_)
            if each.name in content
        }
    )
