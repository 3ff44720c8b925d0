"""Install the environment of a framework that is not in Escala's own: PyTorch."""

from __future__ import annotations

import argparse

from escala import cli
from escala.engines.interpreters import SEPARATE
from escala.install import install


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=sorted(SEPARATE))
    parser.add_argument(
        "--python", metavar="VERSION", help="its Python, 3.11 or later; default: Escala's own"
    )
    arguments = parser.parse_args()
    print(install(arguments.framework, arguments.python))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
