"""YAML as version 1.2 reads it: `1e-3` is a number, `010` is ten, `1:30` and `no` are texts.

PyYAML reads version 1.1, in which `1e-3` is a text, `010` is 8, `1:30` is 90 and `no` is false.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from escala.core.errors import InputError
from escala.core.text import read_text

#: The most nodes of a file, counted with every alias replaced by its content.
MOST_NODES = 100_000
MEND = "correct this line, or close a bracket or a quote before it"
_TAG = "tag:yaml.org,2002:"
#: The types of plain scalars: name, pattern, and first characters (YAML 1.2.2, 10.3.2). Other
#: scalars are texts. `<<` merges mappings, as in version 1.1.
_SCALARS = (
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("merge", "<<", "<"),
)
_RESOLVERS: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
for _name, _pattern, _firsts in _SCALARS:
    for _first in _firsts:
        _resolver = _TAG + _name, re.compile(rf"(?:{_pattern})\Z")
        _RESOLVERS.setdefault(_first, []).append(_resolver)


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


class Scalars:
    """A base class that lets PyYAML's classes read scalars as YAML 1.2."""

    yaml_implicit_resolvers: ClassVar = _RESOLVERS
    yaml_constructors: ClassVar = yaml.SafeLoader.yaml_constructors | {_TAG + "int": _integer}


class Loader(Scalars, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Reads files of the project; with libyaml, if PyYAML has it, in a tenth of the time."""


class Dumper(yaml.SafeDumper):
    """Writes files of YAML. Quotes a text that version 1.1 or 1.2 would read as something else."""

    yaml_implicit_resolvers: ClassVar = {
        first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()), *_RESOLVERS.get(first, ())]
        for first in yaml.SafeDumper.yaml_implicit_resolvers.keys() | _RESOLVERS.keys()
    }


def read(path: str | Path) -> dict:
    """Return the content of a YAML file of a user.

    Raises
    ------
    InputError : as `escala.core.text.open_text`, or the file is not YAML.
    """
    path = Path(path)
    text = read_text(path)
    try:
        return yaml.load(text, _Plain)
    except RecursionError:
        raise InputError(path, path.name, "is nested too deeply", "remove brackets") from None
    except yaml.YAMLError as error:
        is_reader = isinstance(error, yaml.reader.ReaderError)
        before = text[: error.position if is_reader else error.problem_mark.index]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        reason = f"is not YAML: {error.reason if is_reader else error.problem}"
        raise InputError(path, f"line {line}, column {column}", reason, MEND) from None


class _Plain(Scalars, yaml.SafeLoader):
    """A reader of YAML that is a tree of at most `MOST_NODES` nodes.

    Keys are texts or numbers, and no mapping has a key twice. PyYAML would keep the last of two
    equal keys. It would accept an alias inside the value that the alias names, and aliases that
    stand for more than the memory holds.
    """

    def compose_document(self) -> yaml.Node:
        node = super().compose_document()
        self._size(node, {})
        return node

    def _size(self, node: yaml.Node, sizes: dict[yaml.Node, int | None]) -> int:
        """Return the number of nodes, with every alias replaced by its content."""
        if node not in sizes:
            sizes[node] = None  # None marks a node that is being counted.
            parts = node.value if isinstance(node, yaml.CollectionNode) else []
            inner = [part for pair in parts for part in (pair if type(pair) is tuple else [pair])]
            sizes[node] = 1 + sum(self._size(part, sizes) for part in inner)
        if sizes[node] is None:
            raise _mistake("an alias is inside the value that it names", node)
        if sizes[node] > MOST_NODES:
            raise _mistake(f"its aliases stand for more than {MOST_NODES:,} entries", node)
        return sizes[node]

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, AttributeError):
            raise _mistake(f"{node.value} is not a valid value", node) from None

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        # Keys are compared before `<<` adds those of other mappings to the node.
        node, seen = super().compose_mapping_node(anchor), set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _mistake("a list or a mapping is used as a key", key)
            if key.value in seen:
                raise _mistake(f"the key {key.value} is there twice", key)
            seen.add(key.value)
        return node


def _mistake(reason: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, reason, node.start_mark)
