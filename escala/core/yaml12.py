"""YAML as version 1.2 reads it: `1e-3` is a number, `010` is ten, `1:30` and `no` are texts.

PyYAML reads version 1.1, in which `1e-3` is a text, `010` is 8, `1:30` is 90 and `no` is false.
"""

from __future__ import annotations

import re
from typing import ClassVar

import yaml

_TAG = "tag:yaml.org,2002:"
#: What plain scalars are, and how they begin (YAML 1.2.2, 10.3.2); other ones are texts. `<<` is of
#: version 1.1, and merges mappings.
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
    """A base that comes before PyYAML's, so that scalars are read as YAML 1.2."""

    yaml_implicit_resolvers: ClassVar = _RESOLVERS
    yaml_constructors: ClassVar = yaml.SafeLoader.yaml_constructors | {_TAG + "int": _integer}


class Loader(Scalars, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Reads files of the project; with libyaml, if PyYAML has it, in a tenth of the time."""


class Dumper(yaml.SafeDumper):
    """Quotes what either version would read as something else than text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()), *_RESOLVERS.get(first, ())]
        for first in yaml.SafeDumper.yaml_implicit_resolvers.keys() | _RESOLVERS.keys()
    }
