"""The schema of an experiment: what it allows, its defaults, and messages that explain it."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator

from escala.core import plugins
from escala.core.errors import InputError
from escala.core.files import read_yaml
from escala.data import DEFAULT, KINDS, Kind
from escala.probes import PROBES, added
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
    filled = completed(settings, in_python(composed(_common())), origin)
    # Settings are sorted, so that their order in the file changes no run; what they are of is not.
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
    return completed(settings, _of_workload(name), origin)


def omitted_settings(name: str, settings: Mapping[str, Any]) -> dict:
    """Return what a request omits of the settings of a workload: values of keys not required.

    A setting is omitted where it has the value that its declaration calls `omitted`, or that of
    `default` if it names none. So a new setting, or another default beside the old one as
    `omitted`, changes no request of a run that does not set it.

    Parameters
    ----------
    settings : of the workload, at least those that are required.
    """
    schema = _of_workload(name)
    required = {key: settings[key] for key in schema.get("required", ()) if key in settings}
    filled = completed(required, _as_omitted(schema), name)
    return {key: value for key, value in filled.items() if key not in required}


def _of_workload(name: str) -> dict:
    """Return the schema of a workload's settings."""
    schema = in_python(composed(_common()))
    return {"$defs": schema["$defs"], **schema["$defs"][f"workload_{name}"]}


def _as_omitted(node: Any) -> Any:
    """Return a schema whose defaults are the omitted values."""
    if isinstance(node, dict):
        named = {key: _as_omitted(value) for key, value in node.items()}
        return named | ({"default": node["omitted"]} if "omitted" in node else {})
    return [_as_omitted(value) for value in node] if isinstance(node, list) else node


def is_allowed(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a value is what the schema of one setting of a plug-in allows."""
    return _Strict(in_python({"$defs": _common()["$defs"], **schema})).is_valid(value)


def completed(settings: Any, schema: dict, origin: str) -> dict:
    """Return a copy of settings with the defaults of a schema filled in.

    Parameters
    ----------
    schema : its patterns are in Python's grammar, and `$defs/name` is the pattern of names.
    origin : the file, for messages.

    Raises
    ------
    InputError : a key is unknown or missing, or a value is not allowed.
    """
    _check_keys(settings, origin)
    errors = list(_relevant(_Strict(schema).iter_errors(settings)))
    if errors:
        raise _explained(min(errors, key=_urgency), schema, origin)
    filled = yaml.safe_load(yaml.safe_dump(dict(settings)))
    for _ in _filling_defaults(_Strict)(schema).iter_errors(filled):
        # Filling happens while errors are looked for; the content is known to have none.
        continue
    return filled


def _filling_defaults(base: type[Validator]) -> type[Validator]:
    """Extend a validator so that it writes the schema's defaults into what it validates.

    This is the recipe of jsonschema's own documentation (FAQ, "Why doesn't my schema's default
    property set the default on my instance?"), kept out of alternatives the content is not of.
    """
    check_properties = base.VALIDATORS["properties"]

    def properties(validator, subschemas, instance, schema):
        if isinstance(instance, dict) and all(
            instance.get(key) == subschema["const"]
            for key, subschema in subschemas.items()
            if "const" in subschema
        ):
            for key, subschema in subschemas.items():
                if "default" in subschema:
                    default = subschema["default"]
                    instance.setdefault(key, dict(default) if default == {} else default)
        yield from check_properties(validator, subschemas, instance, schema)

    return validators.extend(base, {"properties": properties})


def _is_whole(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(_: object, value: object) -> bool:
    return _is_whole(_, value) or (isinstance(value, float) and math.isfinite(value))


# JSON Schema calls 3.0 an integer and knows no NaN; neither is of use as a count or a rate.
_Strict = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_whole, "number": _is_finite}
    ),
)


def composed(schema: dict) -> dict:
    """Return the schema of an experiment, with what the plug-ins declare."""
    datasets, workloads = _datasets(schema["$defs"]["dataset"]), _workloads(schema["$defs"])
    variant = {"variant": _variant(schema["$defs"]["variant"])}
    named = {name: {"description": each.description} for name, each in WORKLOADS.items()}
    named = {name: each | _reference("workload", name) for name, each in named.items()}
    for name in plugins.folders(plugins.WORKLOADS):
        definition = workloads[f"workload_{name}"]
        definition["properties"] = _PATH | definition["properties"]
    probes = {name: probe.settings for name, probe in PROBES.items()}
    top = added(schema["properties"], probes)
    return schema | {
        "$defs": schema["$defs"] | datasets | workloads | variant,
        "properties": top | {"workloads": top["workloads"] | {"properties": named}},
    }


#: A workload that stands outside the project is named by it.
_PATH = {"path": {"description": "The folder of the workload.", "type": "string"}}


def _reference(of: str, name: str) -> dict:
    return {"$ref": f"#/$defs/{of}_{name}"}


def _workloads(definitions: dict) -> dict:
    """Return the definition of each workload's settings."""
    common = {"steps": definitions["training"], "fit": {}}
    return {
        f"workload_{name}": _merged(each.settings, common[each.kind])
        | {"description": each.description}
        for name, each in WORKLOADS.items()
    }


def _variant(common: dict) -> dict:
    """Return the schema of a variant: the knobs, and the training settings that it may replace."""
    replaced, knobs = common["properties"], all_knobs()
    for name in sorted(replaced.keys() & knobs.keys()):
        raise InputError("knobs", name, "is a setting that variants have", "choose another name")
    schemas = {
        name: {key: value for key, value in knob.schema.items() if key != "omitted"}
        | {"read_by": knob.read_by}
        for name, knob in knobs.items()
    }
    return common | {"properties": schemas | replaced}


def _datasets(common: dict) -> dict:
    """Return the definition of a dataset, and that of a dataset of each kind."""
    of_kinds = {f"dataset_{kind.name}": _settings(kind, common) for kind in KINDS.values()}
    dataset = {
        "type": "object",
        "properties": {"kind": common["properties"]["kind"] | {"enum": list(KINDS)}},
        "allOf": [_if_of_kind(kind) for kind in KINDS.values()],
    }
    return of_kinds | {"dataset": dataset}


def _settings(kind: Kind, common: dict) -> dict:
    """Return the schema of a dataset of a kind."""
    own = {"properties": {"kind": {"const": kind.name}}}
    settings = _merged(_merged(kind.declared["settings"], own), common)
    return settings | {
        "title": f"kind: {kind.name}",
        "description": kind.declared["description"],
    }


def _if_of_kind(kind: Kind) -> dict:
    """Return the schema by which a dataset of a kind keeps to what the kind declares."""
    named = {"properties": {"kind": {"const": kind.name}}}
    if kind.name != DEFAULT:
        named["required"] = ["kind"]
    return {"if": named, "then": _reference("dataset", kind.name)}


def _merged(schema: Mapping, other: Mapping) -> dict:
    """Return two schemas in one; where they differ in a value, it is that of the first."""
    merged = dict(schema)
    for key, value in other.items():
        own = merged.setdefault(key, value)
        if isinstance(own, Mapping):
            merged[key] = _merged(own, value)
        elif isinstance(own, list):
            merged[key] = list(dict.fromkeys([*own, *value]))
    return merged


@cache
def _common() -> dict:
    """Return the schema of what all experiments share; the rest is declared by plug-ins."""
    return read_yaml(SCHEMA)


def is_name(text: str) -> bool:
    """Return whether a text may name a part of an experiment, and so be part of paths."""
    return bool(re.search(in_python(_common()["$defs"]["name"]["pattern"]), text))


def in_python(node: Any) -> Any:
    """Return a schema in which `$` at the end of a pattern is Python's `\\Z`.

    In JSON Schema `$` is the end of the text; in Python a newline may follow it.
    """
    if isinstance(node, dict):
        return {in_python(key): in_python(value) for key, value in node.items()}
    if isinstance(node, list):
        return [in_python(value) for value in node]
    if isinstance(node, str) and node.startswith("^") and node.endswith("$"):
        return node.removesuffix("$") + r"\Z"
    return node


def _check_keys(content: Any, origin: str, path: str = "") -> None:
    """Refuse keys that YAML reads as numbers, dates or truth values: a schema sees names only."""
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
    """Yield errors; of alternatives, those of the one alone that `type` names."""
    for error in errors:
        if error.validator != "oneOf":
            yield error
        elif isinstance(error.instance, Mapping) and "type" in error.instance:
            others = {e.schema_path[0] for e in error.context if e.validator == "const"}
            yield from (e for e in error.context if e.schema_path[0] not in others)


def _urgency(error: ValidationError) -> int:
    """Rank an error before those that it causes: a misspelt key before the lack of the right one.

    The kind of a dataset decides which keys it has.
    """
    if _kinds_with_source(error):
        return -1
    return {"additionalProperties": 0, "required": 2}.get(error.validator, 1)


def _kinds_with_source(error: ValidationError) -> list[str]:
    """Return the kinds that have the source of a dataset whose own kind does not have it."""
    path = list(error.absolute_path)
    if error.validator != "enum" or path[:1] != ["datasets"] or path[2:] != ["source", "type"]:
        return []
    return [name for name, kind in KINDS.items() if error.instance in _sources(kind)]


def _sources(kind: Kind) -> list[str]:
    """Return the types of source that a kind declares."""
    settings = kind.declared["settings"]["properties"]
    return settings.get("source", {}).get("properties", {}).get("type", {}).get("enum", [])


NAME_RULE = "use letters, digits, _ and -, at most 64, starting with a letter or digit"
_TYPES = {
    "object": "a mapping of keys to values",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
# Keyword of the schema -> reason and remedy; `{}` is what the schema asks for.
_SAYINGS = {
    "type": ("is not {}", "give {}"),
    "enum": ("is not among the values allowed", "use one of {}"),
    "minimum": ("is too small", "give at least {}"),
    "exclusiveMinimum": ("is too small", "give more than {}"),
    "maximum": ("is too large", "give at most {}"),
    "exclusiveMaximum": ("is too large", "give less than {}"),
    "minLength": ("is too short", "give at least {} characters"),
    "maxLength": ("is too long", "give at most {} characters"),
    "minItems": ("has too few entries", "give at least {}"),
    "minProperties": ("has too few entries", "give at least {}"),
    "uniqueItems": ("holds an entry twice", "give each once"),
    "pattern": ("does not match {}", "write what is asked for"),
}


def _explained(error: ValidationError, schema: dict, origin: str) -> InputError:
    """Return a schema violation as an error with key, value, reason and remedy."""
    path = list(map(str, error.absolute_path))
    content, asked = error.instance, error.validator_value

    def refused(where: list[str], value: object, reason: str, remedy: str) -> InputError:
        return InputError(f"{origin}: {'.'.join(where) or '(top level)'}", value, reason, remedy)

    if error.validator == "additionalProperties":
        allowed = sorted(error.schema.get("properties", {}))
        patterns = error.schema.get("patternProperties", {})
        unknown = min(k for k in content if k not in allowed and not _matches(patterns, k))
        if not allowed:
            [pattern] = patterns
            general = pattern == schema["$defs"]["name"]["pattern"]
            matching = "use what matches " + pattern.replace("\\Z", "$")
            rule = NAME_RULE if general else matching
            return refused(path, unknown, "not allowed as a name", rule)
        remedy = _with_suggestion(unknown, allowed, f"use one of {', '.join(allowed)}")
        return refused([*path, unknown], content[unknown], "unknown key", remedy)
    if error.validator == "required":
        missing = next(name for name in asked if name not in content)
        meaning = _first_sentence(error.schema["properties"][missing].get("description", ""))
        remedy = f"add {missing}{meaning}"
        return refused([*path, missing], None, "the key is missing", remedy)
    meaning = _first_sentence(_description(schema, error.absolute_schema_path))
    if asked == schema["$defs"]["name"]["pattern"]:
        return refused(path, content, "not allowed as a name", NAME_RULE + meaning)
    if kinds := _kinds_with_source(error):
        remedy = f"set `kind: {' or '.join(kinds)}`; without it, the kind is {DEFAULT}"
        return refused(path, content, "is no source of this kind of dataset", remedy)
    if error.validator == "pattern" and "examples" in error.schema:
        [example] = error.schema["examples"]
        return refused(path, content, f"is not written like {example}", f"write it so{meaning}")
    asked = ", ".join(asked) if isinstance(asked, list) else _TYPES.get(asked, asked)
    reason, remedy = (saying.format(asked) for saying in _SAYINGS[error.validator])
    return refused(path, content, reason.replace("\\Z", "$"), remedy + meaning)


def _description(schema: dict, path: Iterable[str | int]) -> str:
    """Return the innermost description on a path; one beside a `$ref` goes before the target's."""
    node, found = schema, ""
    for part in path:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        node = node[part]
        if isinstance(node, dict):
            found = node.get("description", found)
    return found


def _first_sentence(description: str) -> str:
    first = description.split(". ")[0].strip().rstrip(".")
    if not first:
        return ""
    # NCBI and FASTA stay as they are.
    return f" ({first if first[:2].isupper() else first[0].lower() + first[1:]})"


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _with_suggestion(word: str, known: list[str], otherwise: str) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}? Otherwise {otherwise}" if close else otherwise
