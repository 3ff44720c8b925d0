"""The schema of an experiment: allowed values, defaults, and messages on wrong values."""

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
from escala.core.errors import InputError, InputErrors
from escala.core.files import read_yaml
from escala.data import DEFAULT_KIND, KINDS
from escala.probes import PROBES, with_probe_settings
from escala.runtime.layout import Layout
from escala.strategies.knobs import all_knobs
from escala.workloads import WORKLOADS, Workload

SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "config.schema.yaml"
#: What sites ask of a scaling study: the keys of `scaling.rules`, by the word for a site.
SITES: dict[str, dict] = read_yaml(Path(__file__).with_name("sites.yaml"))
GENERIC = "generic"
#: Where a folder outside the project has the workload.
_PATH = {"path": {"description": "The folder of the workload.", "type": "string"}}
#: The common settings of training that a program can have. It reads them by placeholders.
_TRAINING_OF_PROGRAMS = ("epochs", "batch", "seed")
#: Keys of a program that a variant may replace.
OF_PROGRAMS = ("command", "directory", "files", "environment")
#: A pattern from `^` to a `$` without a backslash before it.
_ANCHORED = re.compile(r"\^.*(?<!\\)(\\\\)*\$", re.DOTALL)
#: Keys by their names before version 0.3, if a search for similar names would suggest a wrong key.
_RENAMED = {"pairs": "repeats", "pilot": "repeats", "shares": "fractions"}
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
_QUOTED = " in quotes: without them YAML reads numbers, true, false and null as such"
#: Reason and remedy for all other keywords; `{keyword}` is the keyword.
_OTHER = ("does not fit its schema", "make it fit `{keyword}: {}`")
#: Keywords whose violation may follow from another violation at the same place.
_CONSEQUENCES = {"required", "oneOf", "anyOf"}


class Settings(dict[str, Any]):
    """The checked content of an experiment's file. `knows` are the workloads that it may name."""

    knows: Mapping[str, Workload]

    def __init__(self, content: Mapping[str, Any], knows: Mapping[str, Workload]):
        super().__init__(content)
        self.knows = knows

    def __or__(self, other: Mapping[str, Any]) -> Settings:
        return Settings({**self, **other}, self.knows)


def validate(settings: Any, origin: str, programs: Mapping[str, Workload] = {}) -> Settings:
    """Return the settings of an experiment with every default filled in.

    Parameters
    ----------
    settings : the content of the experiment's file.
    programs : the programs that the experiment declares, by name.
    origin : the file, for messages.

    Raises
    ------
    InputError : a key is unknown or missing, or a value is not allowed.
    """
    knows = {**WORKLOADS, **programs}
    settings = _with_site(settings)
    filled = complete(settings, with_python_patterns(compose_schema(_common(), knows)), origin)
    # The keys are sorted now. Runs and tables need the order of the file, so restore it.
    in_order = {
        part: {name: filled[part][name] for name in settings.get(part, filled[part])}
        for part in ("datasets", "workloads", "variants", "networks", "ladders")
    }
    configurations = [
        entry | {"layouts": [*map(Layout.parse, entry["layouts"])]}
        for entry in filled["configurations"]
    ]
    return Settings(filled | in_order | {"configurations": configurations}, knows)


def _with_site(settings: Any) -> Any:
    """Return settings in which `scaling.rules` has the keys of its site; its own keys win."""
    scaling = settings.get("scaling") if isinstance(settings, Mapping) else None
    if not isinstance(scaling, Mapping):
        return settings
    schema = _common()["properties"]["scaling"]["properties"]["rules"]
    rules = scaling.get("rules", schema["default"])
    rules = {"site": rules} if isinstance(rules, str) else rules
    if not isinstance(rules, Mapping):
        return settings
    site = rules.get("site", GENERIC)
    keys = SITES.get(site, {}) if isinstance(site, str) else {}
    if "efficiency" in rules:
        keys = {key: value for key, value in keys.items() if key != "tiers"}
    if "source" in keys and rules.keys() - {"site", "name"}:
        # The page of the site does not state such a rule.
        keys = {key: value for key, value in keys.items() if key not in ("source", "date")}
        keys["name"] += ", changed"
    return settings | {"scaling": scaling | {"rules": {"site": site} | keys | rules}}


def workload_settings(name: str, settings: Any, origin: str) -> dict:
    """Return the settings of a workload with every default filled in.

    Raises
    ------
    InputError : see `validate`.
    """
    schema = with_python_patterns(compose_schema(_common()))
    workload = schema["$defs"][f"workload_{name}"] | {"$defs": schema["$defs"]}
    return complete(settings, workload, origin)


def is_allowed(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether the schema of a plug-in's setting allows a value."""
    complete = {**schema, "$defs": _common()["$defs"]}
    return _Strict(with_python_patterns(complete)).is_valid(value)


def complete(settings: Any, schema: dict, origin: str) -> dict:
    """Return a copy of settings with sorted keys and the defaults of a schema.

    The order of the keys decides the order of the inputs of a model.

    Parameters
    ----------
    schema : a result of `with_python_patterns`. Its `$defs` include `name`, the schema of names.
    origin : the file, for messages.

    Raises
    ------
    InputError : a key is unknown or missing, or a value is not allowed.
    """
    _require_text_keys(settings, origin)
    if faults := list(_faults(_Strict(schema).iter_errors(settings), schema, origin)):
        raise InputErrors(faults)
    filled = _with_sorted_keys(settings)
    # The validator fills in the defaults while the errors are listed.
    list(_fill_defaults(_Strict)(schema).iter_errors(filled))
    return filled


def _with_sorted_keys(node: Any) -> Any:
    """Return a copy of a tree in which the keys of every mapping are sorted."""
    if isinstance(node, Mapping):
        return {key: _with_sorted_keys(node[key]) for key in sorted(node)}
    return [_with_sorted_keys(value) for value in node] if isinstance(node, list) else node


def _fill_defaults(base: type[Validator]) -> type[Validator]:
    """Extend a validator so that it writes the defaults of a schema into the validated content.

    The method is from jsonschema's documentation (FAQ, "Why doesn't my schema's default property
    set the default on my instance?"), with one difference. A `const` in `properties` marks an
    alternative of a `oneOf`. If the content has a value other than the `const`, no default of these
    `properties` is written.
    """
    check_properties = base.VALIDATORS["properties"]

    def properties(validator, subschemas, instance, schema):
        described = {k: part for k, part in subschemas.items() if isinstance(part, Mapping)}
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


# Escala refuses 3.0 as an integer, which JSON Schema allows, and NaN, which jsonschema allows.
_Strict = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            "integer": _is_integer,
            "number": lambda checker, value: (
                _is_integer(checker, value) or (isinstance(value, float) and math.isfinite(value))
            ),
        }
    ),
)


def compose_schema(schema: dict, knows: Mapping[str, Workload] = WORKLOADS) -> dict:
    """Return the schema of an experiment, completed by the declarations of all plug-ins.

    Parameters
    ----------
    knows : the workloads that the experiment may name.
    """
    definitions = schema["$defs"]
    rules, datasets = [], {}
    for name, kind in KINDS.items():
        rule = {"properties": {"kind": {"const": name}}}
        settings = with_common(merge(kind.declared["settings"], rule))
        properties = settings["properties"]
        datasets[f"dataset_{name}"] = settings | {
            "required": [key for key in settings["required"] if "default" not in properties[key]],
            "title": f"kind: {name}",
            "description": kind.declared["description"],
        }
        rule |= {"required": ["kind"]} if name != DEFAULT_KIND else {}
        rules.append({"if": rule, "then": {"$ref": f"#/$defs/dataset_{name}"}})
    kinds = definitions["dataset"]["properties"]["kind"] | {"enum": list(KINDS)}
    datasets["dataset"] = {"type": "object", "properties": {"kind": kinds}, "allOf": rules}
    workloads = _workloads(definitions, knows)
    by_name = {
        name: {"description": workload.description, "$ref": f"#/$defs/workload_{name}"}
        for name, workload in knows.items()
    }
    programs = (name for name, workload in knows.items() if workload.is_program)
    for name in (*plugins.folders(plugins.WORKLOADS), *programs):
        definition = workloads[f"workload_{name}"]
        definition["properties"] = _PATH | definition.get("properties", {})
    probes = {name: probe.settings for name, probe in PROBES.items()}
    top_level = with_probe_settings(schema["properties"], probes)
    site = {"properties": {"rules": {"properties": {"site": {"enum": [*SITES]}}}}}
    top_level = top_level | {"scaling": merge(top_level["scaling"], site)}
    # A variant has the knobs, and those settings of training that a variant may replace.
    variant, knobs = definitions["variant"], all_knobs()
    for name in sorted(variant["properties"].keys() & knobs.keys()):
        where = f"{WORKLOADS[knobs[name].workload].folder / 'workload.yaml'}: knobs"
        raise InputError(where, name, "is already a setting of every variant", "rename it")
    knobs = {name: knob.schema | {"read_by": knob.read_by} for name, knob in knobs.items()}
    declared = program_schema()["properties"]
    replaced = {
        name: {key: value for key, value in declared[name].items() if key != "default"}
        | {"description": "Of a program; absent, the workload's."}
        for name in OF_PROGRAMS
    }
    variant = variant | {"properties": knobs | variant["properties"] | replaced}
    return schema | {
        "$defs": definitions | datasets | workloads | {"variant": variant},
        "properties": top_level | {"workloads": top_level["workloads"] | {"properties": by_name}},
    }


@cache
def program_schema() -> dict:
    """Return the schema of the keys of a program."""
    return read_yaml(SCHEMA.with_name("declarations") / "program.schema.yaml")


def _workloads(definitions: dict, knows: Mapping[str, Workload]) -> dict:
    """Return the schema of each workload's settings, as `workload_NAME`."""
    training = definitions["training"]["properties"]
    program = {name: training[name] for name in _TRAINING_OF_PROGRAMS}
    program["epochs"] = program["epochs"] | {"default": 2}
    for name, schema in program_schema()["properties"].items():
        # What an experiment does not set, a `workload.yaml` may.
        program[name] = {key: value for key, value in schema.items() if key != "default"}
    definitions_by_name = {}
    for name, workload in knows.items():
        common = definitions["training"] if workload.takes_steps else {}
        common = {"properties": program} if workload.is_program else common
        schema = merge(workload.settings, common)
        definitions_by_name[f"workload_{name}"] = schema | {"description": workload.description}
    return definitions_by_name


def with_common(settings: Mapping[str, Any]) -> dict:
    """Return the schema of the settings of a kind, completed by the settings of every dataset."""
    return merge(settings, _common()["$defs"]["dataset"])


def merge(schema: Mapping, other: Mapping) -> dict:
    """Merge two schemas: mappings key by key, lists as a union; else keep the first value."""
    result = dict(schema)
    for key, value in other.items():
        first = result.setdefault(key, value)
        if isinstance(first, Mapping) and isinstance(value, Mapping):
            result[key] = merge(first, value)
        elif isinstance(first, list) and isinstance(value, list):
            result[key] = first + [item for item in value if item not in first]
    return result


@cache
def _common() -> dict:
    """Return the schema of an experiment without the declarations of plug-ins."""
    return read_yaml(SCHEMA)


def is_name(text: str) -> bool:
    """Return whether a text may be a name in an experiment. Names become parts of paths."""
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


def _faults(errors: Iterable[ValidationError], schema: dict, origin: str) -> Iterator[InputError]:
    """Yield a message on each violation, except those that follow from another violation.

    A misspelt key is also a missing key. A source of another kind of dataset has unknown keys.

    Parameters
    ----------
    schema : the schema. Its `$defs` include `name`, the schema of names.
    origin : the file of the settings.
    """
    name_pattern = schema["$defs"]["name"]["pattern"]
    by_cause = {"additionalProperties": 0} | dict.fromkeys(_CONSEQUENCES, 2)
    relevant = sorted(_relevant(errors), key=lambda e: by_cause.get(e.validator, 1))
    misspelt = [e.absolute_path for e in relevant if e.validator == "additionalProperties"]
    of_another_kind = [[*e.absolute_path][:2] for e in relevant if _kinds_with_source(e)]
    for error in relevant:
        path, kinds = [*error.absolute_path], _kinds_with_source(error)
        if not kinds and path[:2] in of_another_kind:
            continue
        if error.validator in _CONSEQUENCES and error.absolute_path in misspelt:
            continue
        if kinds:
            remedy = f"set `kind: {' or '.join(kinds)}`; without it, the kind is {DEFAULT_KIND}"
            faults = [([], error.instance, "is not a source of this kind of dataset", remedy)]
        elif error.validator == "additionalProperties":
            faults = _key_faults(error, name_pattern)
        elif error.validator == "required":
            descriptions = {
                name: _in_brackets(setting.get("description", ""))
                for name, setting in error.schema.get("properties", {}).items()
                if isinstance(setting, Mapping)
            }
            faults = [
                ([name], None, "the key is missing", f"add {name}{descriptions.get(name, '')}")
                for name in error.validator_value
                if name not in error.instance
            ]
        else:
            reason, remedy = _reason_and_remedy(error, name_pattern)
            remedy += _in_brackets(_description(schema, error.absolute_schema_path))
            faults = [([], error.instance, reason, remedy)]
        for keys, *fault in faults:
            where = ".".join(map(str, [*path, *keys])) or "(top level)"
            yield InputError(f"{origin}: {where}", *fault)


def _relevant(errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """Replace each `oneOf` error by the errors of the alternative that `type` names."""
    for error in errors:
        inner = []
        has_type = isinstance(error.instance, Mapping) and "type" in error.instance
        if error.validator == "oneOf" and has_type:
            others = {
                cause.schema_path[0]
                for cause in error.context
                if cause.validator == "const" and list(cause.relative_path) == ["type"]
            }
            inner = [cause for cause in error.context if cause.schema_path[0] not in others]
        yield from _relevant(inner) if inner else [error]


def _kinds_with_source(error: ValidationError) -> list[str]:
    """Return the kinds with the source type of a dataset, if its kind lacks that type.

    The list is empty if the error is about something else.
    """
    path = list(error.absolute_path)
    if error.validator != "enum" or path[:1] != ["datasets"] or path[2:] != ["source", "type"]:
        return []
    kinds = []
    for name, kind in KINDS.items():
        node: Any = kind.declared
        for key in ("settings", "properties", "source", "properties", "type", "enum"):
            node = node.get(key, ()) if isinstance(node, Mapping) else ()
        if error.instance in node:
            kinds.append(name)
    return kinds


def _key_faults(
    error: ValidationError, name_pattern: str
) -> Iterator[tuple[list[str], object, str, str]]:
    """Yield, for each forbidden key: keys to append to the path, value, reason and remedy."""
    content, allowed = error.instance, sorted(error.schema.get("properties", {}))
    patterns = list(error.schema.get("patternProperties", {}))
    for key in sorted(content.keys() - {*allowed}):
        if any(re.search(pattern, key) for pattern in patterns):
            continue
        if patterns and not allowed:
            rule = f"match {' or '.join(map(_for_users, patterns))}"
            yield (
                [],
                key,
                "not allowed as a name",
                NAME_RULE if patterns == [name_pattern] else rule,
            )
            continue
        remedy = f"use one of {', '.join(allowed)}" if allowed else "leave it out"
        renamed = [new for old, new in _RENAMED.items() if old == key and new in allowed]
        if near := renamed or difflib.get_close_matches(key, allowed, n=1):
            remedy = f"did you mean {near[0]}? Otherwise {remedy}"
        yield [key], content[key], "unknown key", remedy


def _reason_and_remedy(error: ValidationError, name_pattern: str) -> tuple[str, str]:
    """Return the reason why a value is not allowed, and the remedy."""
    keyword, expected = error.validator, error.validator_value
    if keyword == "pattern":
        if expected == name_pattern:
            return "not allowed as a name", NAME_RULE
        if examples := error.schema.get("examples"):
            return f"is not written like {examples[0]}", "write it so"
    if keyword == "type":
        types = [expected] if isinstance(expected, str) else expected
        shown = " or ".join(_TYPES[name] for name in types)
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
    node: Any = schema
    description = ""
    for part in path:
        if isinstance(node, dict) and part not in node:
            node = schema["$defs"].get(node.get("$ref", "").rpartition("/")[2])
        if isinstance(node, dict):
            node = node.get(part)
        else:
            node = node[part] if isinstance(node, list) else None
        if isinstance(node, dict):
            description = node.get("description", description)
    return description


def _in_brackets(description: str) -> str:
    """Return the first sentence of a description in brackets; empty without a description."""
    first = description.split(". ")[0].strip().rstrip(".")
    if not first:
        return ""
    word = re.match(r"\w*", first)[0]
    # A name such as NCBI or TensorFlow keeps its first capital.
    has_capitals = any(letter.isupper() for letter in word[1:])
    return f" ({first if has_capitals else first[0].lower() + first[1:]})"
