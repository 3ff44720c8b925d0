"""Install the environment of an engine; or compile the operations in C++.

Some strategies compile operations in C++ when they first need them. If the nodes have no compiler,
install the operations before, on a machine that has one.
"""

from __future__ import annotations

import argparse

from escala import cli
from escala.core.arguments import raw_parser
from escala.engines.interpreters import SEPARATE
from escala.install import compile_operations, install

OPERATIONS = "operations"
_NAME, _ENVIRONMENT = next(iter(SEPARATE.items()))
EXAMPLES = f"""\
examples:
  escala install {_NAME}                   the environment {_ENVIRONMENT.folder}, made by uv
  escala install {_NAME} --python 3.13     with another Python than Escala's own
  escala install operations              all operations in C++
"""


def main() -> None:
    arguments = parser().parse_args()
    if arguments.what == OPERATIONS:
        print(*compile_operations(), sep="\n")
    else:
        print(install(arguments.what, arguments.python))


def parser() -> argparse.ArgumentParser:
    parser = raw_parser(__doc__, prog="escala install", epilog=EXAMPLES)
    parser.add_argument("what", choices=[*sorted(SEPARATE), OPERATIONS])
    parser.add_argument(
        "--python", metavar="VERSION", help="its Python, from 3.11; default: Escala's own"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
