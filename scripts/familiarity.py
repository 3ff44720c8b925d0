"""Learn the content of the training rows of a split, to flag unfamiliar items."""

from __future__ import annotations

from pathlib import Path

from escala import cli
from escala.data import KINDS
from escala.data.base import DESCRIPTION


def main() -> None:
    given = cli.options(__doc__, kind=str, split=Path, output=Path)
    kind = KINDS[given.kind]

    def make() -> None:
        learned = kind.load("familiarity").learn(given.split, given.output)
        print(f"{given.output}: {len(learned.held_out)} held-out rows")

    arrays = {name: given.split / name for name in (DESCRIPTION, *kind.files)}
    cli.serve_or_make(
        "familiarity",
        code=kind.code(),
        inputs={name: path for name, path in arrays.items() if path.exists()},
        parameters={},
        outputs={"familiarity": given.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
