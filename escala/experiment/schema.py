"""The schema of an experiment: what it allows, its defaults, and messages that explain it."""

from __future__ import annotations

import copy
import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator

from escala.core import plugins
from escala.core.errors import InputError
from escala.core.files import read_yaml
from escala.data import DEFAULT_KIND, KINDS, Kind
from escala.probes import PROBES, with_probe_settings
from escala.strategies.knobs import all_knobs
from escala.workloads import WORKLOADS

SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "config.schema.yaml"


def validated(settings: Any, origin: str) -> dict:
    """Return the settings of an experiment with every default filled in.

    Parameters
    ----------
    settings : the content of the experiment's file.
    origin : the file, for messages.

    Raises
    ------
    InputError : a key is unknown or missing, or a value is not allowed.
    """
    filled = completed(settings, with_python_patterns(composed(_common())), origin)
    # `_filled` sorts the keys. Runs and tables have the order of the file, so restore that order.
    in_order = {
        part: {name: filled[part][name] for name in settings.get(part, filled[part])}
        for part in ("datasets", "workloads", "variants", "networks", "ladders")
    }
    return filled | in_order


def workload_settings(name: str, settings: Any, origin: str) -> dict:
    """Return the settings of a workload with every default filled in.

    Raises
    ------
    InputError : as `validated`.
    """
    return completed(settings, _workload_schema(name), origin)


def _workload_schema(name: str) -> dict:
    """Return the schema of a workload's settings."""
    schema = with_python_patterns(composed(_common()))
    return schema["$defs"][f"workload_{name}"] | {"$defs": schema["$defs"]}


def is_allowed(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether the schema of a plug-in's setting allows a value."""
    complete = {**schema, "$defs": _common()["$defs"]}
    return _Strict(with_python_patterns(complete)).is_valid(value)


def completed(settings: Any, schema: dict, origin: str) -> dict:
    """Return a copy of settings with the defaults of a schema filled in.

    Parameters
    ----------
    schema : a result of `with_python_patterns`. Its `$defs` hold `name`, the schema of names.
    origin : the file, for messages.

    Raises
    ------
    InputError : a key is unknown or missing, or a value is not allowed.
    """
    _check_keys(settings, origin)
    errors = list(_relevant(_Strict(schema).iter_errors(settings)))
    if errors:
        raise _as_input_error(min(errors, key=_priority), schema, origin)
    return _filled(settings, schema)


def _filled(settings: Mapping[str, Any], schema: dict) -> dict:
    """Return a copy of settings with sorted keys and a schema's defaults, without a check."""
    filled = _with_sorted_keys(settings)
    for _ in _filling_defaults(_Strict)(schema).iter_errors(filled):
        # The validator fills in the defaults while the errors are listed.
        continue
    return filled


def _with_sorted_keys(node: Any) -> Any:
    """Return a copy of a tree in which the keys of every mapping are sorted."""
    if isinstance(node, Mapping):
        return {key: _with_sorted_keys(node[key]) for key in sorted(node)}
    if isinstance(node, list):
        return [_with_sorted_keys(value) for value in node]
    return node


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


def composed(schema: dict) -> dict:
    """Return the schema of an experiment, completed by the declarations of all plug-ins."""
    datasets, workloads = _datasets(schema["$defs"]["dataset"]), _workloads(schema["$defs"])
    variant = {"variant": _variant(schema["$defs"]["variant"])}
    by_name = {
        name: {"description": workload.description} | _schema_ref("workload", name)
        for name, workload in WORKLOADS.items()
    }
    for name in plugins.folders(plugins.WORKLOADS):
        definition = workloads[f"workload_{name}"]
        definition["properties"] = _PATH | definition.get("properties", {})
    probes = {name: probe.settings for name, probe in PROBES.items()}
    top_level = with_probe_settings(schema["properties"], probes)
    return schema | {
        "$defs": schema["$defs"] | datasets | workloads | variant,
        "properties": top_level | {"workloads": top_level["workloads"] | {"properties": by_name}},
    }


#: The setting that gives the folder of a workload outside the project.
_PATH = {"path": {"description": "The folder of the workload.", "type": "string"}}


def _schema_ref(part: str, name: str) -> dict:
    return {"$ref": f"#/$defs/{part}_{name}"}


@cache
def program_schema() -> dict:
    """Return the schema of the keys of a program."""
    return read_yaml(SCHEMA.with_name("declarations") / "program.schema.yaml")


#: The common settings of training that a program has, through its placeholders.
_TRAINING_OF_PROGRAMS = ("epochs", "batch", "seed")


def _program_settings(definitions: dict) -> dict:
    """Return the settings of a program: those of training that it may take, and its own keys."""
    training = definitions["training"]["properties"]
    common = {name: training[name] for name in _TRAINING_OF_PROGRAMS}
    common["epochs"] = common["epochs"] | {"default": 2}
    own = {
        # What an experiment does not set, a `workload.yaml` may.
        name: {key: value for key, value in schema.items() if key != "default"}
        for name, schema in program_schema()["properties"].items()
    }
    return {"properties": common | own}


def _workloads(definitions: dict) -> dict:
    """Return the definition of each workload's settings."""
    common = {
        "steps": definitions["training"],
        "fit": {},
        "command": _program_settings(definitions),
    }
    return {
        f"workload_{name}": _merged(each.settings, common[each.kind])
        | {"description": each.description}
        for name, each in WORKLOADS.items()
    }


def _variant(common: dict) -> dict:
    """Return the schema of a variant: the knobs, and the training settings that it may replace."""
    replaced, knobs = common["properties"], all_knobs()
    for name in sorted(replaced.keys() & knobs.keys()):
        raise InputError("knobs", name, "is already a setting of every variant", "rename it")
    schemas = {name: knob.schema | {"read_by": knob.read_by} for name, knob in knobs.items()}
    return common | {"properties": schemas | replaced}


def _datasets(common: dict) -> dict:
    """Return the schema of any dataset, and one schema per kind."""
    by_kind = {f"dataset_{kind.name}": _settings(kind, common) for kind in KINDS.values()}
    dataset = {
        "type": "object",
        "properties": {"kind": common["properties"]["kind"] | {"enum": list(KINDS)}},
        "allOf": [_if_of_kind(kind) for kind in KINDS.values()],
    }
    return by_kind | {"dataset": dataset}


def _settings(kind: Kind, common: dict) -> dict:
    """Return the schema of a dataset of a kind."""
    named = {"properties": {"kind": {"const": kind.name}}}
    settings = _merged(_merged(kind.declared["settings"], named), common)
    properties = settings["properties"]
    return settings | {
        "required": [name for name in settings["required"] if "default" not in properties[name]],
        "title": f"kind: {kind.name}",
        "description": kind.declared["description"],
    }


def _if_of_kind(kind: Kind) -> dict:
    """Return the if/then rule that applies a kind's schema to its datasets."""
    named = {"properties": {"kind": {"const": kind.name}}}
    if kind.name != DEFAULT_KIND:
        named["required"] = ["kind"]
    return {"if": named, "then": _schema_ref("dataset", kind.name)}


def _merged(schema: Mapping, other: Mapping) -> dict:
    """Merge two schemas: mappings key by key, lists as a union; of other values, keep the first."""
    merged = dict(schema)
    for key, value in other.items():
        first = merged.setdefault(key, value)
        if isinstance(first, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(first, value)
        elif isinstance(first, list) and isinstance(value, list):
            merged[key] = first + [each for each in value if each not in first]
    return merged


@cache
def _common() -> dict:
    """Return the schema of an experiment without the declarations of plug-ins."""
    return read_yaml(SCHEMA)


def is_name(text: str) -> bool:
    """Return whether a text may be the name of a part of an experiment.

    Such names become parts of paths.
    """
    return bool(re.search(with_python_patterns(_common()["$defs"]["name"]["pattern"]), text))


#: A pattern from `^` to a `$` without a backslash before it.
_ANCHORED = re.compile(r"\^.*(?<!\\)(\\\\)*\$", re.DOTALL)


def with_python_patterns(node: Any) -> Any:
    """Return a schema in which `\\Z` replaces the `$` at the end of patterns.

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


def _check_keys(content: Any, origin: str, path: str = "") -> None:
    """Refuse keys that YAML reads as numbers, dates or truth values: JSON Schema needs text."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if not isinstance(key, str):
                raise InputError(
                    f"{origin}: {path or '(top level)'}", key, "a key that is not text", "quote it"
                )
            _check_keys(value, origin, f"{path}.{key}" if path else key)
    elif isinstance(content, list):
        for position, value in enumerate(content):
            _check_keys(value, origin, f"{path}.{position}")


def _relevant(errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """Replace each `oneOf` error by the errors of the alternative that `type` names."""
    for error in errors:
        selected = _selected(error) if error.validator == "oneOf" else []
        yield from _relevant(selected) if selected else [error]


def _selected(error: ValidationError) -> list[ValidationError]:
    """Return the errors of those alternatives of a `oneOf` that allow the content's `type`."""
    if not isinstance(error.instance, Mapping) or "type" not in error.instance:
        return []
    others = {
        each.schema_path[0]
        for each in error.context
        if each.validator == "const" and list(each.relative_path) == ["type"]
    }
    return [each for each in error.context if each.schema_path[0] not in others]


def _priority(error: ValidationError) -> int:
    """Return a number that orders errors: a cause has a lower one than its consequences.

    A misspelt key causes a missing key. A source type of another kind of dataset causes unknown
    keys.
    """
    if _kinds_with_source(error):
        return -1
    ranks = {"additionalProperties": 0, "required": 2, "oneOf": 3, "anyOf": 3}
    return ranks.get(error.validator, 1)


def _kinds_with_source(error: ValidationError) -> list[str]:
    """Return the kinds that have the source type which a dataset's own kind does not have.

    The list is empty if the error is about something else.
    """
    path = list(error.absolute_path)
    if error.validator != "enum" or path[:1] != ["datasets"] or path[2:] != ["source", "type"]:
        return []
    return [name for name, kind in KINDS.items() if error.instance in _source_types(kind)]


def _source_types(kind: Kind) -> list[str]:
    """Return the types of source that a kind declares."""
    node: Any = kind.declared["settings"]
    for key in ("properties", "source", "properties", "type", "enum"):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node or []


NAME_RULE = "use letters, digits, _ and -, at most 64, starting with a letter or digit"
_TYPES = {
    "object": "a mapping of keys to values",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
#: Reason and remedy by keyword of JSON Schema; `{}` is the keyword's value. The keyword is None if
#: the schema is `false`, which allows no value.
_REASONS_AND_REMEDIES = {
    "type": ("is not {}", "give {}"),
    "enum": ("is not among the values allowed", "use one of {}"),
    "const": ("is not the value allowed", "use {}"),
    "minimum": ("is too small", "give at least {}"),
    "exclusiveMinimum": ("is too small", "give more than {}"),
    "maximum": ("is too large", "give at most {}"),
    "exclusiveMaximum": ("is too large", "give less than {}"),
    "multipleOf": ("is not a multiple of {}", "give a multiple of {}"),
    "minLength": ("is too short", "give at least {} characters"),
    "maxLength": ("is too long", "give at most {} characters"),
    "pattern": ("has a form or characters that are not allowed", "match {}"),
    "minItems": ("has too few entries", "give at least {}"),
    "maxItems": ("has too many entries", "give at most {}"),
    "minProperties": ("has too few entries", "give at least {}"),
    "maxProperties": ("has too many entries", "give at most {}"),
    "uniqueItems": ("has an entry twice", "give each once"),
    "oneOf": ("is not exactly one of the forms allowed", "use one of these forms"),
    "anyOf": ("has none of the forms allowed", "use one of these forms"),
    "not": ("is not allowed", "give another value"),
    None: ("is not allowed", "leave it out"),
}
#: YAML reads such words as other values than text.
_QUOTED = " in quotes: without them YAML reads no, yes, on and off as true or false"
#: Reason and remedy for all other keywords; `{keyword}` is the keyword.
_OTHER = ("does not fit its schema", "make it fit `{keyword}: {}`")


def _as_input_error(error: ValidationError, schema: dict, origin: str) -> InputError:
    """Return a schema violation as an error with key, value, reason and remedy."""
    name_pattern = schema["$defs"]["name"]["pattern"]
    if error.validator == "additionalProperties":
        keys, value, reason, remedy = _unknown_key(error, name_pattern)
    elif error.validator == "required":
        keys, value, reason, remedy = _missing_key(error)
    elif kinds := _kinds_with_source(error):
        keys, value, reason = [], error.instance, "is no source of this kind of dataset"
        remedy = f"set `kind: {' or '.join(kinds)}`; without it, the kind is {DEFAULT_KIND}"
    else:
        keys, value = [], error.instance
        reason, remedy = _reason_and_remedy(error, name_pattern)
        remedy += _in_brackets(_description(schema, error.absolute_schema_path))
    where = ".".join([*map(str, error.absolute_path), *keys]) or "(top level)"
    return InputError(f"{origin}: {where}", value, reason, remedy)


def _unknown_key(error: ValidationError, name_pattern: str) -> tuple[list[str], object, str, str]:
    """Return the message on a forbidden key: keys to append to the path, value, reason, remedy."""
    content, allowed = error.instance, sorted(error.schema.get("properties", {}))
    patterns = list(error.schema.get("patternProperties", {}))
    unknown = min(k for k in content if k not in allowed and not _matches(patterns, k))
    if patterns and not allowed:
        expected = " or ".join(map(_for_users, patterns))
        rule = NAME_RULE if patterns == [name_pattern] else f"match {expected}"
        return [], unknown, "not allowed as a name", rule
    remedy = f"use one of {', '.join(allowed)}" if allowed else "leave it out"
    return [unknown], content[unknown], "unknown key", _with_suggestion(unknown, allowed, remedy)


def _missing_key(error: ValidationError) -> tuple[list[str], object, str, str]:
    """Return the message on a missing key: keys to append to the path, value, reason, remedy."""
    missing = next(name for name in error.validator_value if name not in error.instance)
    setting = error.schema.get("properties", {}).get(missing)
    description = setting.get("description", "") if isinstance(setting, Mapping) else ""
    return [missing], None, "the key is missing", f"add {missing}{_in_brackets(description)}"


def _reason_and_remedy(error: ValidationError, name_pattern: str) -> tuple[str, str]:
    """Return why a value is not allowed, and what to give instead."""
    keyword, expected = error.validator, error.validator_value
    if keyword == "pattern" and expected == name_pattern:
        return "not allowed as a name", NAME_RULE
    examples = error.schema.get("examples") if keyword == "pattern" else None
    if examples:
        return f"is not written like {examples[0]}", "write it so"
    if keyword == "type":
        types = [expected] if isinstance(expected, str) else expected
        shown = " or ".join(_TYPES[each] for each in types)
    elif keyword == "enum":
        shown = ", ".join(map(_for_users, expected))
    else:
        shown = _for_users(expected)
    reason, remedy = _REASONS_AND_REMEDIES.get(keyword, _OTHER)
    if keyword == "type" and expected == "string" and not isinstance(error.instance, list | dict):
        remedy += _QUOTED
    return reason.format(shown), remedy.format(shown, keyword=keyword)


def _for_users(value: object) -> str:
    """Return a value of a schema as users write it."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.replace(r"\Z", "$")


def _description(schema: dict, path: Iterable[str | int]) -> str:
    """Return the last description on a path through a schema, or an empty text.

    The path continues in the target of a `$ref`. The description of the target itself is not read.
    """
    node, description = schema, ""
    for part in path:
        if isinstance(node, dict) and part not in node:
            node = schema["$defs"].get(node.get("$ref", "").rpartition("/")[2])
        node = _child(node, part)
        if isinstance(node, dict):
            description = node.get("description", description)
    return description


def _child(node: Any, part: str | int) -> Any:
    """Return a part of a mapping or a list, None if there is no such part."""
    if isinstance(node, dict):
        return node.get(part)
    return node[part] if isinstance(node, list) else None


def _in_brackets(description: str) -> str:
    """Return the first sentence of a description in brackets, or an empty text if there is none."""
    first = description.split(". ")[0].strip().rstrip(".")
    if not first:
        return ""
    word = re.match(r"\w*", first)[0]
    # A name such as NCBI or TensorFlow keeps its first capital.
    has_capitals = any(letter.isupper() for letter in word[1:])
    return f" ({first if has_capitals else first[0].lower() + first[1:]})"


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _with_suggestion(word: str, known: list[str], otherwise: str) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}? Otherwise {otherwise}" if close else otherwise
