"""Write the reference pages of the documentation from the schemas, or check them."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.core.errors import InputError
from escala.core.files import atomic
from escala.reference import ROOT, outdated, pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "reference")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if outdated")
    arguments = parser.parse_args()
    if not arguments.check:
        for name, text in pages().items():
            with atomic(arguments.folder / name) as temporary:
                temporary.write_text(text)
        return
    stale = outdated(arguments.folder)
    if stale:
        raise InputError(
            arguments.folder, stale, "differs from the schemas", "run scripts/docs_reference.py"
        )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
