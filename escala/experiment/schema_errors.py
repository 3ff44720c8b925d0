"""Messages on violations of the schema of an experiment, with reason and remedy."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jsonschema.exceptions import ValidationError

from escala.core.errors import InputError
from escala.data import DEFAULT_KIND, KINDS

#: Keys that are called otherwise since version 0.3, where similarity would suggest a wrong one.
_RENAMED = {"pairs": "pilot", "shares": "fractions"}
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
#: Keywords of causes come before those of their consequences: a misspelt key causes a missing key.
_PRIORITY = {"additionalProperties": 0, "required": 2, "oneOf": 3, "anyOf": 3}


def refusal(errors: Iterable[ValidationError], schema: dict, origin: str) -> InputError | None:
    """Return the message on the violation that is most likely the cause of all, or None.

    Parameters
    ----------
    schema : its `$defs` hold `name`, the schema of names.
    origin : the file of the settings.
    """
    found = list(_relevant(errors))
    if not found:
        return None
    # A source type of another kind of dataset causes unknown keys.
    error = min(found, key=lambda e: -1 if _kinds_with_source(e) else _PRIORITY.get(e.validator, 1))
    name_pattern = schema["$defs"]["name"]["pattern"]
    keys, value = [], error.instance
    if error.validator == "additionalProperties":
        keys, value, reason, remedy = _unknown_key(error, name_pattern)
    elif error.validator == "required":
        missing, value = [name for name in error.validator_value if name not in value], None
        keys, reason = missing[:1], "the key is missing"
        remedy = "add " + ", ".join(name + _meaning(error, name) for name in missing)
    elif kinds := _kinds_with_source(error):
        reason = "is not a source of this kind of dataset"
        remedy = f"set `kind: {' or '.join(kinds)}`; without it, the kind is {DEFAULT_KIND}"
    else:
        reason, remedy = _reason_and_remedy(error, name_pattern)
        remedy += _in_brackets(_description(schema, error.absolute_schema_path))
    where = ".".join([*map(str, error.absolute_path), *keys]) or "(top level)"
    return InputError(f"{origin}: {where}", value, reason, remedy)


def _relevant(errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """Replace each `oneOf` error by the errors of the alternative that `type` names."""
    for error in errors:
        inner = []
        has_type = isinstance(error.instance, Mapping) and "type" in error.instance
        if error.validator == "oneOf" and has_type:
            others = {
                each.schema_path[0]
                for each in error.context
                if each.validator == "const" and list(each.relative_path) == ["type"]
            }
            inner = [each for each in error.context if each.schema_path[0] not in others]
        yield from _relevant(inner) if inner else [error]


def _kinds_with_source(error: ValidationError) -> list[str]:
    """Return the kinds that have the source type which a dataset's own kind does not have.

    The list is empty if the error is about something else.
    """
    path = list(error.absolute_path)
    if error.validator != "enum" or path[:1] != ["datasets"] or path[2:] != ["source", "type"]:
        return []
    return [name for name, kind in KINDS.items() if error.instance in _source_types(kind.declared)]


def _source_types(node: Any) -> list[str]:
    for key in ("settings", "properties", "source", "properties", "type", "enum"):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node or []


def _unknown_key(error: ValidationError, name_pattern: str) -> tuple[list[str], object, str, str]:
    """Return the message on a forbidden key: keys to append to the path, value, reason, remedy."""
    content, allowed = error.instance, sorted(error.schema.get("properties", {}))
    patterns = list(error.schema.get("patternProperties", {}))
    unknown = min(
        key
        for key in content
        if key not in allowed and not any(re.search(pattern, key) for pattern in patterns)
    )
    if patterns and not allowed:
        rule = f"match {' or '.join(map(_for_users, patterns))}"
        rule = NAME_RULE if patterns == [name_pattern] else rule
        return [], unknown, "not allowed as a name", rule
    remedy = f"use one of {', '.join(allowed)}" if allowed else "leave it out"
    near = [key for key in [_RENAMED.get(unknown)] if key in allowed]
    if near := near or difflib.get_close_matches(unknown, allowed, n=1):
        remedy = f"did you mean {near[0]}? Otherwise {remedy}"
    return [unknown], content[unknown], "unknown key", remedy


def _reason_and_remedy(error: ValidationError, name_pattern: str) -> tuple[str, str]:
    """Return why a value is not allowed, and what to give instead."""
    keyword, expected = error.validator, error.validator_value
    if keyword == "pattern":
        if expected == name_pattern:
            return "not allowed as a name", NAME_RULE
        if examples := error.schema.get("examples"):
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


def _meaning(error: ValidationError, key: str) -> str:
    """Return in brackets what a key means whose lack is an error."""
    setting = error.schema.get("properties", {}).get(key)
    return _in_brackets(setting.get("description", "") if isinstance(setting, Mapping) else "")


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
    """Return the first sentence of a description in brackets, or an empty text if there is none."""
    first = description.split(". ")[0].strip().rstrip(".")
    if not first:
        return ""
    word = re.match(r"\w*", first)[0]
    # A name such as NCBI or TensorFlow keeps its first capital.
    has_capitals = any(letter.isupper() for letter in word[1:])
    return f" ({first if has_capitals else first[0].lower() + first[1:]})"
