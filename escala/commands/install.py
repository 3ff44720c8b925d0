"""Install the environment of an engine; or compile the operations in C++.

An experiment makes the environments that it needs. If the nodes of a cluster have no access to the
internet, install the environment before, on a machine with access. Some strategies compile
operations in C++ when they first need them. If the nodes have no compiler, install the operations
before, on a machine with a compiler.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from escala.core.arguments import Parser
from escala.core.engines import DEFAULT, ENGINES
from escala.engines import load
from escala.engines.environments import enter, install

OPERATIONS = "operations"
EXAMPLES = f"""\
examples:
  escala install {DEFAULT}              its environment, made by uv
  escala install {DEFAULT} --python 3.11  with another Python than Escala's own
  escala install operations              all operations in C++
"""


def add(parser: Parser) -> None:
    names = [*sorted(ENGINES), OPERATIONS]
    parser.add_argument("name", metavar="ENGINE", choices=names, help=f"one of {', '.join(names)}")
    parser.add_argument(
        "--python",
        metavar="VERSION",
        help="its Python; default: Escala's own, or a release that the engine needs",
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.name == OPERATIONS:
        enter(DEFAULT)
        print(*compile_operations(), sep="\n")
    else:
        print(install(arguments.name, arguments.python))


def compile_operations() -> list[Path]:
    """Compile all operations in C++ into this environment, and return their libraries.

    Raises
    ------
    Unavailable : there is no compiler, the compiler fails, or the environment is read-only.
    """
    fast = load(DEFAULT, "fast")
    sources = sorted(Path(fast.__file__).parent.glob("*.cc"))
    instead = "settings that take no operations"
    return [fast.compile_library(source, instead) for source in sources]
