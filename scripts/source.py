"""Acquire the data of all splits of a dataset, with a lock file of digests."""

from __future__ import annotations

from pathlib import Path

from escala import cli
from escala.data import KINDS


def main() -> None:
    given = cli.options(__doc__, kind=str, acquisition=cli.json_or_file, inputs=[Path], output=Path)
    kind = KINDS[given.kind]

    def make() -> None:
        from escala.core.files import atomic
        from escala.data.lock import write_lock

        with atomic(given.output) as temporary:
            temporary.mkdir()
            kind.load("source").acquire(given.acquisition, given.inputs, temporary)
            write_lock(temporary)

    cli.serve_or_make(
        "source",
        code=kind.code(),
        inputs={f"{place} {path.name}": path for place, path in enumerate(given.inputs)},
        parameters={"kind": kind.name, "acquisition": given.acquisition},
        outputs={"source": given.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
