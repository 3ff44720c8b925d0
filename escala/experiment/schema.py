"""The schema of an experiment: what it allows, and its defaults."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, validators
from jsonschema.protocols import Validator

from escala.core import plugins
from escala.core.errors import InputError
from escala.core.files import read_yaml
from escala.data import DEFAULT_KIND, KINDS, Kind
from escala.experiment.schema_errors import refusal
from escala.probes import PROBES, with_probe_settings
from escala.runtime.layout import Layout
from escala.strategies.knobs import all_knobs
from escala.workloads import WORKLOADS, Workload

SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "config.schema.yaml"
#: Where a folder outside the project has the workload.
_PATH = {"path": {"description": "The folder of the workload.", "type": "string"}}
#: The common settings of training that a program has, through its placeholders.
_TRAINING_OF_PROGRAMS = ("epochs", "batch", "seed")
#: A pattern from `^` to a `$` without a backslash before it.
_ANCHORED = re.compile(r"\^.*(?<!\\)(\\\\)*\$", re.DOTALL)


class Settings(dict[str, Any]):
    """The checked content of an experiment's file, and the workloads that it `knows` by name."""

    knows: Mapping[str, Workload]

    def __init__(self, content: Mapping[str, Any], knows: Mapping[str, Workload]):
        super().__init__(content)
        self.knows = knows

    def __or__(self, other: Mapping[str, Any]) -> Settings:
        return Settings({**self, **other}, self.knows)


def validated(settings: Any, origin: str, programs: Mapping[str, Workload] = {}) -> Settings:
    """Return the settings of an experiment with every default filled in.

    Parameters
    ----------
    settings : the content of the experiment's file.
    programs : those that it declares, by name.
    origin : the file, for messages.

    Raises
    ------
    InputError : a key is unknown or missing, or a value is not allowed.
    """
    knows = {**WORKLOADS, **programs}
    filled = completed(settings, with_python_patterns(composed(_common(), knows)), origin)
    # The keys are sorted. Runs and tables have the order of the file, so restore that order.
    in_order = {
        part: {name: filled[part][name] for name in settings.get(part, filled[part])}
        for part in ("datasets", "workloads", "variants", "networks", "ladders")
    }
    configurations = [
        entry | {"layouts": [*map(Layout.parse, entry["layouts"])]}
        for entry in filled["configurations"]
    ]
    return Settings(filled | in_order | {"configurations": configurations}, knows)


def workload_settings(name: str, settings: Any, origin: str) -> dict:
    """Return the settings of a workload with every default filled in.

    Raises
    ------
    InputError : as `validated`.
    """
    schema = with_python_patterns(composed(_common()))
    workload = schema["$defs"][f"workload_{name}"] | {"$defs": schema["$defs"]}
    return completed(settings, workload, origin)


def is_allowed(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether the schema of a plug-in's setting allows a value."""
    complete = {**schema, "$defs": _common()["$defs"]}
    return _Strict(with_python_patterns(complete)).is_valid(value)


def completed(settings: Any, schema: dict, origin: str) -> dict:
    """Return a copy of settings with sorted keys and the defaults of a schema.

    Parameters
    ----------
    schema : a result of `with_python_patterns`. Its `$defs` hold `name`, the schema of names.
    origin : the file, for messages.

    Raises
    ------
    InputError : a key is unknown or missing, or a value is not allowed.
    """
    _require_text_keys(settings, origin)
    if error := refusal(_Strict(schema).iter_errors(settings), schema, origin):
        raise error
    filled = _with_sorted_keys(settings)
    # The validator fills in the defaults while the errors are listed.
    list(_filling_defaults(_Strict)(schema).iter_errors(filled))
    return filled


def _with_sorted_keys(node: Any) -> Any:
    """Return a copy of a tree in which the keys of every mapping are sorted."""
    if isinstance(node, Mapping):
        return {key: _with_sorted_keys(node[key]) for key in sorted(node)}
    return [_with_sorted_keys(value) for value in node] if isinstance(node, list) else node


def _filling_defaults(base: type[Validator]) -> type[Validator]:
    """Extend a validator so that it writes the schema's defaults into what it validates.

    The method is from jsonschema's documentation (FAQ, "Why doesn't my schema's default property
    set the default on my instance?"), with one difference. A `const` in `properties` marks an
    alternative of a `oneOf`. If the content has another value there, no default of these
    `properties` is written.
    """
    check_properties = base.VALIDATORS["properties"]

    def properties(validator, subschemas, instance, schema):
        described = {key: each for key, each in subschemas.items() if isinstance(each, Mapping)}
        if isinstance(instance, dict) and all(
            instance.get(key) == subschema["const"]
            for key, subschema in described.items()
            if "const" in subschema
        ):
            for key, subschema in described.items():
                if "default" in subschema:
                    instance.setdefault(key, copy.deepcopy(subschema["default"]))
        yield from check_properties(validator, subschemas, instance, schema)

    return validators.extend(base, {"properties": properties})


def _is_integer(_checker: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite_number(checker: object, value: object) -> bool:
    return _is_integer(checker, value) or (isinstance(value, float) and math.isfinite(value))


# JSON Schema takes 3.0 for an integer, and jsonschema takes NaN for a number. Escala does not.
_Strict = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_integer, "number": _is_finite_number}
    ),
)


def composed(schema: dict, knows: Mapping[str, Workload] = WORKLOADS) -> dict:
    """Return the schema of an experiment, completed by the declarations of all plug-ins.

    Parameters
    ----------
    knows : the workloads that it may name.
    """
    definitions = schema["$defs"]
    workloads = _workloads(definitions, knows)
    by_name = {
        name: {"description": workload.description, "$ref": f"#/$defs/workload_{name}"}
        for name, workload in knows.items()
    }
    programs = (name for name, each in knows.items() if each.is_program)
    for name in (*plugins.folders(plugins.WORKLOADS), *programs):
        definition = workloads[f"workload_{name}"]
        definition["properties"] = _PATH | definition.get("properties", {})
    probes = {name: probe.settings for name, probe in PROBES.items()}
    top_level = with_probe_settings(schema["properties"], probes)
    variant = {"variant": _variant(definitions["variant"])}
    return schema | {
        "$defs": definitions | _datasets(definitions["dataset"]) | workloads | variant,
        "properties": top_level | {"workloads": top_level["workloads"] | {"properties": by_name}},
    }


@cache
def program_schema() -> dict:
    """Return the schema of the keys of a program."""
    return read_yaml(SCHEMA.with_name("declarations") / "program.schema.yaml")


def _workloads(definitions: dict, knows: Mapping[str, Workload]) -> dict:
    """Return the definition of each workload's settings."""
    training = definitions["training"]["properties"]
    program = {name: training[name] for name in _TRAINING_OF_PROGRAMS}
    program["epochs"] = program["epochs"] | {"default": 2}
    for name, schema in program_schema()["properties"].items():
        # What an experiment does not set, a `workload.yaml` may.
        program[name] = {key: value for key, value in schema.items() if key != "default"}
    found = {}
    for name, each in knows.items():
        common = definitions["training"] if each.takes_steps else {}
        common = {"properties": program} if each.is_program else common
        schema = merged(each.settings, common)
        found[f"workload_{name}"] = schema | {"description": each.description}
    return found


def _variant(common: dict) -> dict:
    """Return the schema of a variant: the knobs, and the training settings that it may replace."""
    replaced, knobs = common["properties"], all_knobs()
    for name in sorted(replaced.keys() & knobs.keys()):
        file = WORKLOADS[knobs[name].workload].folder / "workload.yaml"
        raise InputError(
            f"{file}: knobs", name, "is already a setting of every variant", "rename it"
        )
    schemas = {name: knob.schema | {"read_by": knob.read_by} for name, knob in knobs.items()}
    return common | {"properties": schemas | replaced}


def _datasets(common: dict) -> dict:
    """Return the schema of any dataset, and one schema per kind."""
    rules = []
    for name in KINDS:
        named = {"properties": {"kind": {"const": name}}}
        named |= {"required": ["kind"]} if name != DEFAULT_KIND else {}
        rules.append({"if": named, "then": {"$ref": f"#/$defs/dataset_{name}"}})
    kinds = common["properties"]["kind"] | {"enum": list(KINDS)}
    dataset = {"type": "object", "properties": {"kind": kinds}, "allOf": rules}
    by_kind = {f"dataset_{kind.name}": _dataset(kind) for kind in KINDS.values()}
    return by_kind | {"dataset": dataset}


def with_common(settings: Mapping[str, Any]) -> dict:
    """Return the schema of the settings of a kind, with those of every dataset."""
    return merged(settings, _common()["$defs"]["dataset"])


def _dataset(kind: Kind) -> dict:
    """Return the schema of a dataset of a kind."""
    named = {"properties": {"kind": {"const": kind.name}}}
    settings = with_common(merged(kind.declared["settings"], named))
    properties = settings["properties"]
    return settings | {
        "required": [name for name in settings["required"] if "default" not in properties[name]],
        "title": f"kind: {kind.name}",
        "description": kind.declared["description"],
    }


def merged(schema: Mapping, other: Mapping) -> dict:
    """Merge two schemas: mappings key by key, lists as a union; of other values, keep the first."""
    result = dict(schema)
    for key, value in other.items():
        first = result.setdefault(key, value)
        if isinstance(first, Mapping) and isinstance(value, Mapping):
            result[key] = merged(first, value)
        elif isinstance(first, list) and isinstance(value, list):
            result[key] = first + [each for each in value if each not in first]
    return result


@cache
def _common() -> dict:
    """Return the schema of an experiment without the declarations of plug-ins."""
    return read_yaml(SCHEMA)


def is_name(text: str) -> bool:
    """Return whether a text may be the name of a part of an experiment, and so part of paths."""
    return bool(re.search(with_python_patterns(_common()["$defs"]["name"]["pattern"]), text))


def with_python_patterns(node: Any) -> Any:
    r"""Return a schema in which `\Z` replaces the `$` at the end of patterns.

    In JSON Schema, `$` matches only at the end of the text. In Python it also matches before a
    newline at the end.
    """
    if isinstance(node, dict):
        return {
            with_python_patterns(key): with_python_patterns(value) for key, value in node.items()
        }
    if isinstance(node, list):
        return [with_python_patterns(value) for value in node]
    if isinstance(node, str) and _ANCHORED.fullmatch(node):
        return node.removesuffix("$") + r"\Z"
    return node


def _require_text_keys(content: Any, origin: str, path: str = "") -> None:
    """Refuse keys that YAML reads as numbers, dates or truth values: JSON Schema needs text."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if not isinstance(key, str):
                where = f"{origin}: {path or '(top level)'}"
                raise InputError(where, key, "a key that is not text", "quote it")
            _require_text_keys(value, origin, f"{path}.{key}" if path else key)
    elif isinstance(content, list):
        for position, value in enumerate(content):
            _require_text_keys(value, origin, f"{path}.{position}")
