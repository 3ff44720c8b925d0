"""Write the reference pages of the documentation from schemas and commands, or check them."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
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
COLUMNS = (
    "Columns of several tables are described once; the first line of a table names all that it "
    "has. Units are in the names, types in these files. An empty field is unknown, or does not "
    "apply. Lists are joined by `;`. `kind` is `measured`, `estimated`, `censored` or "
    "`unavailable`. ± : there are also `…_low…` and `…_high…`, the ends of a 95 % "
    "interval, over repeats of the `level` in `speedup.csv`."
)
SETTINGS = (
    "A bold key is required. `=` stands before a default, which shows the type. `?` behind a type: "
    "the value may be null. A number is not negative. In paths of data, `~` and variables of the "
    "shell are expanded."
)
#: A limit of this size only guards against a slip; a message tells it.
GUARD = 1000
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
#: The commands whose options others share, and an option in a help text.
SHARED, OPTION = ("run", "try"), re.compile(r"^  -.*\n(?: {6,}.*\n)*", re.MULTILINE)


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
            SETTINGS,
            *describe(_sections(settings, settings, ""), settings),
        ],
        "tables.md": [
            "# Result tables",
            GENERATED.format("schemas/tables/*.schema.yaml", "these files"),
            COLUMNS,
            *describe(((table["title"], table) for table in columns), {}, are_columns=True),
        ],
    }
    written = {name: "\n\n".join(texts) + "\n" for name, texts in parts.items()}
    return written | {"commands.md": commands()}


def commands() -> str:
    """Return the page of the command `escala`: its exit codes, and the options of subcommands."""
    codes = [f"| {code} | {meaning} |" for code, meaning in console.MEANINGS.items()]
    lines = [
        "# Commands",
        "",
        GENERATED.format("escala/command.py", "the help texts in `escala/commands/`"),
        "`escala NAME --help` says more, with examples.",
        "",
        "## Exit codes",
        "",
        *("| code | meaning |", "| --- | --- |", *codes),
    ]
    texts = {}
    for name, parser in command.parsers().items():
        parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, width=WIDTH)
        parser.description = parser.description.partition("\n\n")[0]
        parser.epilog = None
        text = HELP.sub("", parser.format_help())
        # An automatic line of usage only repeats the options.
        texts[name] = text if parser.usage else text.partition("\n\n")[2]
    shared = {name: OPTION.findall(texts[name]) for name in SHARED}
    for name, text in texts.items():
        further = []
        for other in takewhile(name.__ne__, SHARED):
            options = [option for option in shared[other] if option in OPTION.findall(text)]
            for option in options:
                text = text.replace(option, "")
            if options:
                order = [re.findall(r"--[\w-]+", option)[0] for option in shared[other]]
                names = [order[shared[other].index(option)] for option in options]
                further.append(f"As of `escala {other}`: {', '.join(_spans(names, order))}.")
        # A heading without entries.
        text = re.sub(r"^\S.*:\n(?=\n|\Z)\n?", "", text, flags=re.MULTILINE).rstrip()
        lines += ["", f"## escala {name}", "", "```text", text, "```"]
        lines += [line for option in further for line in ("", option)]
    return "\n".join(lines) + "\n"


def describe(
    sections: Iterable[tuple[str, dict]], root: dict, are_columns: bool = False
) -> Iterator[str]:
    """Yield the parts of a page: the heading and the keys of each section.

    Keys with the same description in several sections are described once, at the begin of the page.
    Keys that follow each other with the same description have one line.

    Parameters
    ----------
    sections : headings, and objects of JSON Schema.
    root : the schema in which a `$ref` is looked up.
    are_columns : whether the keys are columns: their lines have no types, and a section does not
        list its keys that are described at the begin.
    """
    entries = [(heading, node, dict(_keys(node, root, are_columns))) for heading, node in sections]
    counts = Counter(item for *_, texts in entries for item in texts.items())
    # The most frequent description of a key.
    shared: dict[str, str] = {}
    for (key, text), count in counts.most_common():
        if count > 1:
            shared.setdefault(key, text)
    if shared:
        yield f"## {SEVERAL}"
        yield _join(text for key, text in counts if shared.get(key) == text)
    order = [key for key, text in counts if shared.get(key) == text]
    # The key that has had the same lines on the keys in its value.
    seen = {text.partition("\n")[2]: key for key, text in shared.items() if "\n" in text}
    for heading, node, texts in entries:
        yield f"## {heading}"
        if "description" in node:
            yield node["description"]
        elsewhere = [key for key, text in texts.items() if shared.get(key) == text]
        if elsewhere and not are_columns:
            link = f"[See above](#{SEVERAL.lower().replace(' ', '-')})"
            yield f"{link}: {', '.join(_spans(elsewhere, order))}."
        readers: dict[str, list[str]] = {}
        for key, text in texts.items():
            if key not in elsewhere:
                first, _, inner = text.partition("\n")
                if inner in seen:
                    text = f"{first} Keys as of `{seen[inner]}` above."
                elif inner:
                    seen[inner] = key
                read_by = _resolve(node["properties"][key], root).get("read_by", ())
                readers.setdefault(_code(read_by), []).append(text)
        for names, lines in readers.items():
            if names:
                yield f"Read by {names}:"
            yield _join(lines)


def _join(texts: Iterable[str]) -> str:
    """Return lines on keys; those that follow each other with the same description are one line."""
    lines: list[tuple[str, str]] = []
    for text in texts:
        names, rest = re.fullmatch(
            r"( *- (?:`.+?`(?: ±)?|\*\*`.+?`\*\*))((?: \(|:|$).*)", text, re.DOTALL
        ).groups()
        if lines and lines[-1][1] == rest:
            names = f"{lines.pop()[0]}, {names.removeprefix('- ')}"
        lines.append((names, rest))
    return "\n".join(map("".join, lines))


def _spans(keys: Sequence[str], order: Sequence[str]) -> Iterator[str]:
    """Yield keys as code; three or more that follow each other in `order` are `first` … `last`."""
    places = [order.index(key) for key in keys]
    begin = 0
    for end in range(1, len(keys) + 1):
        if end == len(keys) or places[end] != places[end - 1] + 1:
            span = keys[begin:end]
            yield f"`{span[0]}` … `{span[-1]}`" if len(span) > 2 else _code(span)
            begin = end


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


def _keys(
    node: dict, root: dict, are_columns: bool = False, indent: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield each key of an object, with the lines on the key and on the keys in its value.

    A column with an interval has a mark, and no lines on its ends. A key with a constant value is
    left out.
    """
    properties = node["properties"]
    ends = {child.get("end_of") for child in properties.values()}
    for key, child in properties.items():
        child = _resolve(child, root)
        if "const" in child or "end_of" in child:
            continue
        has_default = child.get("default") not in (None, {})
        named = {"enum", "description"} <= child.keys()
        shows_type = named if are_columns else "enum" in child or not has_default
        form = [_type(child, root)] * shows_type
        if not are_columns:
            form += [*_limits(child), child.get("unit", "")]
        is_required = key in node.get("required", ())
        if has_default and not is_required:
            form.append(f"= {_code([child['default']])}")
        form = ", ".join(filter(None, form))
        text = child.get("description", "")
        if node is root and "properties" in child and key != "workloads":
            text = "has a section below."
        name = f"**`{key}`**" if is_required else f"`{key}`{' ±' * (key in ends)}"
        lines = [f"{indent}- {name}{f' ({form})' * bool(form)}{f': {text}' * bool(text)}"]
        if node is not root:
            lines += _inner(child, root, f"{indent}    ")
        yield key, "\n".join(lines)


def _inner(node: dict, root: dict, indent: str) -> Iterator[str]:
    """Yield the lines of the keys in a value, or in each alternative of a value."""
    if forms := [form for form in node.get("oneOf", ()) if "title" in form]:
        for form in forms:
            kind = form["properties"]["type"]
            yield f"{indent}- `type: {kind['const']}`: {kind['description']}"
            yield from (text for _, text in _keys(form, root, indent=f"{indent}    "))
    elif "properties" in node:
        yield from (text for _, text in _keys(node, root, indent=indent))
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
    """Return the type of a value, or the values that its description does not name."""
    if "enum" in node:
        values = [value for value in node["enum"] if value is not None]
        return _code(values) * any(
            f"`{value}`" not in node.get("description", "") for value in values
        )
    if {"oneOf", "properties"} & node.keys() or isinstance(node.get("default"), bool):
        return ""
    types = [node["type"]] if isinstance(node["type"], str) else node["type"]
    items = _resolve(node.get("items", {}), root)
    of = _type(items, root) if items else ""
    names = _TYPES | {"array": f"{of}s" if of in ("text", "integer", "number") else "list"}
    text = " or ".join(names.get(name, name) for name in types if name != "null")
    text = ", ".join([text + "?" * ("null" in types), *_limits(items)])
    if any(child.get("type") for child in node.get("patternProperties", {}).values()):
        text += " by name"
    return text


def _limits(node: dict) -> list[str]:
    """Return the limits of a value that are neither a guard nor what any count has."""
    told = {
        key: node[key]
        for key in _LIMITS.keys() & node.keys()
        if node[key] < GUARD and not (key.endswith("inimum") and node[key] in (0, 1))
    }
    if "maximum" in told and "minimum" in node:
        return ["{minimum} to {maximum}".format(**node)]
    return [text.format(**told) for key, text in _LIMITS.items() if key in told]


def _code(values: Iterable[object]) -> str:
    """Return values as code; texts are not in quotes."""
    texts = (value if isinstance(value, str) else json.dumps(value) for value in values)
    return ", ".join(f"`{text}`" for text in texts)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
