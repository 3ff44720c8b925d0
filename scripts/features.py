"""Compute the features of a dataset's pictures, which do not depend on their captions."""

from __future__ import annotations

from pathlib import Path

from escala import cli
from escala.core import packages
from escala.core.engines import DEFAULT, ENGINES
from escala.core.files import read_json
from escala.data import KINDS
from escala.data.captions import flickr8k
from escala.data.captions.settings import CAPTIONS_FILE
from escala.engines.environments import enter


def main() -> None:
    enter(DEFAULT)
    given = cli.options(
        __doc__, source=Path, pictures=Path, weights=Path, weights_sha256=str, output=Path
    )
    pictures = flickr8k.files(read_json(given.source / CAPTIONS_FILE), given.pictures)

    def make() -> None:
        from escala.core.files import atomic
        from escala.data.captions.vgg16 import extract

        with atomic(given.output) as temporary:
            temporary.mkdir()
            extract(pictures, given.weights, given.weights_sha256, temporary)

    cli.serve_or_make(
        "features",
        # The code that lists the pictures does not decide their features.
        code=KINDS["captions"].code("vgg16.py"),
        inputs={"weights": given.weights}
        | {f"pictures/{name}": path for name, path in pictures.items()},
        parameters={"weights_sha256": given.weights_sha256}
        | packages.versions(ENGINES[DEFAULT].distributions),
        outputs={"features": given.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
