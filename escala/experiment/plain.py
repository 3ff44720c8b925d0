"""Read YAML 1.2, and refuse what is no plain tree of moderate size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from escala.core.errors import InputError
from escala.core.text import read_text
from escala.core.yaml12 import Scalars

#: Entries of a file, with every alias written out.
MOST_NODES = 100_000
MEND = "correct this line, or close a bracket or a quote before it"


def read(path: str | Path) -> dict:
    """Return the content of a YAML file.

    Raises
    ------
    InputError : as `escala.core.text.opened`, or the file is not YAML.
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
    """YAML that is a tree of moderate size, whose mappings name each key once, by a text or number.

    PyYAML would keep the last of two equal keys, and let an alias stand within what it names, or
    for more than there is memory for.
    """

    def compose_document(self) -> yaml.Node:
        node = super().compose_document()
        self._size(node, {})
        return node

    def _size(self, node: yaml.Node, sizes: dict[yaml.Node, int | None]) -> int:
        """Return how many nodes there are with every alias written out."""
        if node not in sizes:
            sizes[node] = None  # It is being counted.
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

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _mistake("a list or a mapping is used as a key", key)
            if key.value in seen:
                raise _mistake(f"the key {key.value} is there twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _mistake(reason: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, reason, node.start_mark)
