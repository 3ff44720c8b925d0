"""Install the environment of PyTorch, the second engine; or compile the operations in C++.

escala install torch         .venv-torch, by uv
escala install operations    what some strategies would compile when they first need it: call it
                             where there is a compiler, if the nodes have none
"""

from __future__ import annotations

from escala import cli
from escala.core.arguments import raw_parser
from escala.engines.interpreters import SEPARATE
from escala.install import compile_operations, install

OPERATIONS = "operations"


def main() -> None:
    parser = raw_parser(__doc__)
    parser.add_argument("what", choices=[*sorted(SEPARATE), OPERATIONS])
    parser.add_argument(
        "--python", metavar="VERSION", help="its Python, 3.11 or later; default: Escala's own"
    )
    arguments = parser.parse_args()
    if arguments.what == OPERATIONS:
        print(*compile_operations(), sep="\n")
    else:
        print(install(arguments.what, arguments.python))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
