"""Write the reference pages of the documentation from schemas and commands, or check them."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from escala import cli, command
from escala.analysis.tables import SCHEMAS as TABLES
from escala.analysis.tables import schema as table_schema
from escala.core import console
from escala.core.errors import InputError
from escala.core.files import read_yaml, write_text
from escala.experiment import schema as experiment

ROOT = Path(__file__).resolve().parent.parent
GENERATED = "Generated from `{}` by `python scripts/docs_reference.py`; edit {} instead."
#: The heading of keys with the same description in several sections.
SEVERAL = "Keys of several sections"
NUMBERS = (
    "A column without a type is a number, or empty. `?` behind a type: the value may be empty. "
    "`…_low…` and `…_high…` are the ends of a 95 % interval, unless another interval is named; "
    "over repeats its level is that of `speedup.csv`. "
    "Units are in the names."
)
_TYPES = {"string": "text", "array": "list", "object": "keys", "boolean": "true or false"}
_LIMITS = {
    "minimum": "≥ {minimum}",
    "exclusiveMinimum": "> {exclusiveMinimum}",
    "maximum": "≤ {maximum}",
    "exclusiveMaximum": "< {exclusiveMaximum}",
    "maxLength": "at most {maxLength} characters",
}
#: The width of a help text, and the option that every help text has.
WIDTH, HELP = 100, re.compile(r"  -h, --help .*\n")
#: The command whose options other commands share, and an option in a help text.
SHARED, OPTION = "try", re.compile(r"^  -.*\n(?: {6,}.*\n)*", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "reference")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if outdated")
    arguments = parser.parse_args()
    stale = stale_pages(arguments.folder)
    if stale and arguments.check:
        reason = "differs from the schemas or commands"
        raise InputError(arguments.folder, [*stale], reason, "run scripts/docs_reference.py")
    for name, text in stale.items():
        write_text(arguments.folder / name, text)


def stale_pages(folder: Path) -> dict[str, str]:
    """Return the pages that are missing in `folder` or differ there: file → Markdown."""
    return {
        name: text
        for name, text in pages().items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    }


def pages() -> dict[str, str]:
    """Return the reference pages: name of the file in `docs/reference/` → Markdown."""
    settings = experiment.compose_schema(read_yaml(experiment.SCHEMA))
    names = sorted(path.name.partition(".")[0] for path in TABLES.iterdir())
    columns = [*map(table_schema, names), read_yaml(TABLES.with_name("history.schema.yaml"))]
    parts = {
        "configuration.md": [
            "# Configuration",
            GENERATED.format(
                "schemas/config.schema.yaml", "the schema or the declaration of the plug-in"
            ),
            "`?` behind a type: the value may be null.",
            *describe(_sections(settings, settings, ""), settings),
        ],
        "tables.md": [
            "# Result tables",
            GENERATED.format("schemas/tables/*.schema.yaml", "these files"),
            NUMBERS,
            *describe(((table["title"], table) for table in columns), {}),
        ],
    }
    written = {name: "\n\n".join(texts) + "\n" for name, texts in parts.items()}
    return written | {"commands.md": commands()}


def commands() -> str:
    """Return the page of the command `escala`: its exit codes, and the help of each subcommand."""
    codes = [f"| {code} | {meaning} |" for code, meaning in console.MEANINGS.items()]
    lines = [
        "# Commands",
        "",
        GENERATED.format("escala/command.py", "the help texts in `escala/commands/`"),
        "",
        "## Exit codes",
        "",
        *("| code | meaning |", "| --- | --- |", *codes),
    ]
    texts = {}
    for name, parser in command.parsers().items():
        parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, width=WIDTH)
        text = HELP.sub("", parser.format_help())
        # An automatic line of usage only repeats the options.
        texts[name] = text if parser.usage else text.partition("\n\n")[2]
    shared = set(OPTION.findall(texts[SHARED]))
    for name, text in texts.items():
        same = [option for option in OPTION.findall(text) if option in shared]
        further = []
        if name != SHARED and same:
            text = OPTION.sub(lambda match: "" if match[0] in shared else match[0], text)
            text = re.sub(r"^\S.*:\n(?=\n|\Z)\n?", "", text, flags=re.MULTILINE)
            names = _code(option.split()[0].rstrip(",") for option in same)
            further = ["", f"Also, as of `escala {SHARED}`: {names}."]
        lines += ["", f"## escala {name}", "", "```text", text.rstrip(), "```", *further]
    return "\n".join(lines) + "\n"


def describe(sections: Iterable[tuple[str, dict]], root: dict) -> Iterator[str]:
    """Yield the parts of a page: the heading and the keys of each section.

    Keys with the same description in several sections are described once, at the begin of the page.

    Parameters
    ----------
    sections : headings, and objects of JSON Schema.
    root : the schema in which a `$ref` is looked up.
    """
    entries = [(heading, node, dict(_keys(node, root))) for heading, node in sections]
    counts = Counter(item for *_, texts in entries for item in texts.items())
    # The most frequent description of a key.
    shared: dict[str, str] = {}
    for (key, text), count in counts.most_common():
        if count > 1:
            shared.setdefault(key, text)
    if shared:
        yield f"## {SEVERAL}"
        yield "\n".join(text for key, text in counts if shared.get(key) == text)
    for heading, node, texts in entries:
        yield f"## {heading}"
        if "description" in node:
            yield node["description"]
        elsewhere = [key for key, text in texts.items() if shared.get(key) == text]
        if elsewhere:
            yield f"[Described above](#{SEVERAL.lower().replace(' ', '-')}): {_code(elsewhere)}."
        if here := [text for key, text in texts.items() if key not in elsewhere]:
            yield "\n".join(here)


def _sections(node: dict, root: dict, path: str) -> Iterator[tuple[str, dict]]:
    """Yield heading and object of each section of the settings of an experiment."""
    heading = f"`{path}`" if path else "Top level"
    if "allOf" in node:
        for rule in node["allOf"]:
            kind = _resolve(rule["then"], root)
            yield f"{heading} ({kind['title']})", kind
    elif path == "workloads":
        for name, workload in node["properties"].items():
            yield f"`workloads.{name}`", _resolve(workload, root)
    elif "properties" in node:
        yield heading, node
    if not path:
        for key, child in node["properties"].items():
            yield from _sections(_resolve(child, root), root, key)
    for child in node.get("patternProperties", {}).values():
        yield from _sections(_resolve(child, root), root, f"{path}.NAME")
    if "properties" in node.get("items", {}):
        yield from _sections(node["items"], root, f"{path}[]")


def _keys(node: dict, root: dict, indent: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key of an object, with the lines on the key and on the keys in its value.

    A column and the ends of its interval have one line. A key with a constant value is left out.
    """
    properties = node["properties"]
    for key, child in properties.items():
        child = _resolve(child, root)
        if "const" in child or "end_of" in child:
            continue
        names = [key, *(end for end, other in properties.items() if other.get("end_of") == key)]
        form = [_type(child, root), *_limits(child), child.get("unit", "")]
        if key in node.get("required", ()):
            form.append("required")
        elif child.get("default") not in (None, {}):
            form.append(f"default {_code([child['default']])}")
        if child.get("read_by"):
            form.append(f"read by {_code(child['read_by'])}")
        form = ", ".join(filter(None, form))
        text = child.get("description", "")
        if node is root and "properties" in child and key != "workloads":
            text = f"see [its keys](#{key})."
        lines = [f"{indent}- {_code(names)}{f' ({form})' * bool(form)}{f': {text}' * bool(text)}"]
        if node is not root:
            lines += _inner(child, root, f"{indent}    ")
        yield key, "\n".join(lines)


def _inner(node: dict, root: dict, indent: str) -> Iterator[str]:
    """Yield the lines of the keys in a value, or in each alternative of a value."""
    if forms := [form for form in node.get("oneOf", ()) if "title" in form]:
        for form in forms:
            kind = form["properties"]["type"]
            yield f"{indent}- `type: {kind['const']}`: {kind['description']}"
            yield from (text for _, text in _keys(form, root, f"{indent}    "))
    elif "properties" in node:
        yield from (text for _, text in _keys(node, root, indent))
    for child in (*node.get("patternProperties", {}).values(), node.get("items")):
        yield from _inner(_resolve(child, root), root, indent) if child else ()


def _resolve(node: dict, root: dict) -> dict:
    """Return a schema merged with the target of its `$ref`. The schema's keys win."""
    if "$ref" not in node:
        return node
    target = root
    for part in node["$ref"].removeprefix("#/").split("/"):
        target = target[part]
    return _resolve(target, root) | {key: v for key, v in node.items() if key != "$ref"}


def _type(node: dict, root: dict) -> str:
    """Return the type of a value, or the values that its description does not name.

    The result is empty for a column whose value is a number or nothing.
    """
    if "enum" in node:
        values = [value for value in node["enum"] if value is not None]
        return _code(values) * any(f"`{value}`" not in node["description"] for value in values)
    if {"oneOf", "properties"} & node.keys() or isinstance(node.get("default"), bool):
        return ""
    types = [node["type"]] if isinstance(node["type"], str) else node["type"]
    if types == ["number", "null"] and "default" not in node:
        return ""
    text = " or ".join(_TYPES.get(name, name) for name in types if name != "null")
    text += "?" * ("null" in types)
    if items := _resolve(node.get("items", {}), root):
        of = [_type(items, root), *_limits(items)]
        text += " of " * any(of) + ", ".join(filter(None, of))
    if any(child.get("type") for child in node.get("patternProperties", {}).values()):
        text += " by name"
    return text


def _limits(node: dict) -> list[str]:
    if {"minimum", "maximum"} <= node.keys():
        return ["{minimum} to {maximum}".format(**node)]
    return [text.format(**node) for key, text in _LIMITS.items() if key in node]


def _code(values: Iterable[object]) -> str:
    """Return values as code; texts are not in quotes."""
    texts = (value if isinstance(value, str) else json.dumps(value) for value in values)
    return ", ".join(f"`{text}`" for text in texts)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
