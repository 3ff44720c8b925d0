"""Reference pages in Markdown, generated from the JSON Schemas and from what plug-ins declare."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from escala.analysis.tables import SCHEMAS as TABLES
from escala.analysis.tables import schema as table_schema
from escala.core.files import read_yaml
from escala.experiment import schema as experiment
from escala.record import schema as run

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "schemas"
GENERATED = "Generated from `{}` by `python scripts/docs_reference.py`; edit {} instead."

#: What stands on each page of schemas.
NULL = "`?` behind a type: the value may be null, which is empty in a CSV file."
_PAGES = {
    "configuration.md": ("Configuration", "config.schema.yaml"),
    "run.md": ("run.json", "run.schema.yaml"),
    "tables.md": ("Result tables", "tables/*.schema.yaml"),
    "history.md": ("History", "history.schema.yaml"),
    "calibration.md": ("calibration.json", "calibration.schema.yaml"),
    "advice.md": ("advice.json", "advice.schema.yaml"),
}
#: What completes a schema with what plug-ins declare, by the name of its file.
_COMPOSED = {"config.schema.yaml": experiment.composed, "run.schema.yaml": run.compose_schema}
#: Keys that so many sections of a page describe alike are described once, below this heading.
SHARED, SEVERAL = 3, "Keys of several sections"
_COLUMNS = ("Key", "Type", "Allowed", "Unit", "Default", "Read by", "Description")
_Rows = tuple[tuple[str, ...], ...]
_TYPES = {type(None): "null", bool: "boolean", str: "string"}
_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "≥ {} characters",
    "maxLength": "≤ {} characters",
    "minItems": "≥ {} items",
    "minProperties": "≥ {} keys",
    "uniqueItems": "no item twice",
    "pattern": "matches `{}`",
}


def pages(schemas: Path = SCHEMAS) -> dict[str, str]:
    """Return the reference pages: name of the file in `docs/reference/` → Markdown."""
    texts = {}
    for name, (title, pattern) in _PAGES.items():
        source = f"the schema{' or the declaration of the plug-in' * (pattern in _COMPOSED)}"
        generated = GENERATED.format(f"schemas/{pattern}", source)
        lines = [f"# {title}", "", generated, NULL, *_body(sorted(schemas.glob(pattern)))]
        texts[name] = "\n".join(lines) + "\n"
    return texts


def outdated(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Return the names of the pages in `folder` that are not what they should be."""
    return [
        name
        for name, text in texts.items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]


def _body(files: list[Path]) -> list[str]:
    """Return the sections of a page: objects that are described alike share one.

    Keys that several sections describe alike stand in the first.
    """
    sections: dict[tuple[str, _Rows], list[str]] = {}
    for file in files:
        if file.parent == TABLES:
            schema = table_schema(file.name.partition(".")[0])
        else:
            schema = _COMPOSED.get(file.name, dict)(read_yaml(file))
        top = schema["title"] if len(files) > 1 else "Top level"
        for heading, node in _objects(schema, schema, ""):
            alike = node.get("description", ""), _rows(node, schema)
            sections.setdefault(alike, []).append(heading or top)
    counts = Counter(row for _, rows in sections for row in rows)
    # The most frequent description of a key; the ends of an interval stay beside their value.
    shared: dict[str, tuple[str, ...]] = {}
    for row, count in counts.most_common():
        if count >= SHARED and not row[0].endswith(("low`", "high`")):
            shared.setdefault(row[0], row)
    link = f"[{SEVERAL.lower()}](#{SEVERAL.lower().replace(' ', '-')})"
    first = [row for row in counts if shared.get(row[0]) == row]
    lines = ["", f"## {SEVERAL}", "", *_table(first)] if first else []
    for (description, rows), headings in sections.items():
        lines += ["", f"## {', '.join(headings)}", ""]
        if description:
            lines += [description, ""]
        if elsewhere := [row[0] for row in rows if shared.get(row[0]) == row]:
            lines += [f"{', '.join(elsewhere)}: see {link}.", ""]
        if here := [row for row in rows if row[0] not in elsewhere]:
            lines += _table(here)
    return lines


def _objects(node: dict, root: dict, path: str, kind: str = "") -> Iterator[tuple[str, dict]]:
    """Yield every object with keys of its own in a schema, under the path that leads to it.

    `kind` names the alternatives that it belongs to.
    """
    if "properties" in node:
        yield (f"`{path}`{kind}" if path else ""), node
    inner = {
        f"{path}.{key}".lstrip("."): child for key, child in node.get("properties", {}).items()
    }
    inner |= {f"{path}.NAME".lstrip("."): c for c in node.get("patternProperties", {}).values()}
    if "items" in node:
        inner[f"{path}[]"] = node["items"]
    for key, child in inner.items():
        yield from _objects(_resolved(child, root), root, key, kind)
    conditional = [branch_of_all.get("then", {}) for branch_of_all in node.get("allOf", [])]
    for branch in [*node.get("oneOf", []), *conditional]:
        selected = _resolved(branch, root)
        if "title" in selected:
            yield from _objects(selected, root, path, f"{kind} ({selected['title']})")


def _resolved(node: dict, root: dict) -> dict:
    """Return a schema with what its `$ref` names merged in; its own keys win."""
    if "$ref" not in node:
        return node
    target = root
    for part in node["$ref"].removeprefix("#/").split("/"):
        target = target[part]
    return _resolved(target, root) | {key: v for key, v in node.items() if key != "$ref"}


def _rows(node: dict, root: dict) -> _Rows:
    """Return what is said of each key of an object, in the order of `_COLUMNS`."""
    required = node.get("required", [])
    children = {key: _resolved(child, root) for key, child in node["properties"].items()}
    limited = any(child.get("read_by") for child in children.values())
    complete = set(required) == set(children) and not any("default" in c for c in children.values())
    return tuple(
        (
            f"`{key}`",
            _type(child, root),
            _allowed(child, root),
            child.get("unit", ""),
            "" if complete else "required" if key in required else _default(child),
            ", ".join(f"`{name}`" for name in child.get("read_by", ())) or "all" * limited,
            child.get("description", ""),
        )
        for key, child in children.items()
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a table of keys; a column that says nothing is left out."""
    columns = [at for at in range(len(_COLUMNS)) if any(row[at] for row in rows)]
    cells = ([row[at].replace("|", "\\|") for at in columns] for row in rows)
    lines = [[_COLUMNS[at] for at in columns], ["---"] * len(columns), *cells]
    return [f"| {' | '.join(line)} |" for line in lines]


def _type(node: dict, root: dict) -> str:
    """Return the type of a key; `?` marks one that may be null."""
    if "type" not in node:
        values = node.get("enum", [node.get("const")])
        types = sorted({_TYPES.get(type(value), "number") for value in values})
    else:
        types = node["type"] if isinstance(node["type"], list) else [node["type"]]
    text = " or ".join(each for each in types if each != "null") + "?" * ("null" in types)
    if "items" in node:
        return f"{text} of {_plural(_type(_resolved(node['items'], root), root))}"
    for child in node.get("patternProperties", {}).values():
        return f"{text} of {_plural(_type(_resolved(child, root), root))} by name"
    return text


def _plural(text: str) -> str:
    noun, *rest = text.split(" ", 1)
    return " ".join([f"{noun}s", *rest])


def _allowed(node: dict, root: dict) -> str:
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        values = (v if isinstance(v, str) else json.dumps(v) for v in node["enum"])
        return ", ".join(f"`{value}`" for value in values)
    limits = [text.format(node[key]) for key, text in _LIMITS.items() if key in node]
    if "items" in node:
        items = _allowed(_resolved(node["items"], root), root)
        limits += [f"each {items}"] if items else []
    names = [f"names match `{pattern}`" for pattern in node.get("patternProperties", {})]
    return "; ".join(limits + names)


def _default(node: dict) -> str:
    return f"`{json.dumps(node['default'])}`" if "default" in node else ""
