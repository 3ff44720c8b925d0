"""Compute the features of a dataset's pictures, which do not depend on their captions."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.core.files import read_json
from escala.data.captions import flickr8k
from escala.data.captions.files import CAPTIONS_FILE

#: Only the code of this module decides the features, and not that which lists the pictures.
CODE = "escala.data.captions.vgg16"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, type=Path, help="folder of the captions")
    parser.add_argument("--pictures", required=True, type=Path, help="folder of the pictures")
    parser.add_argument("--weights", required=True, type=Path, help="file of the weights of VGG16")
    parser.add_argument("--weights-sha256", required=True, help="its digest")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    arguments = parser.parse_args()
    pictures = flickr8k.files(read_json(arguments.source / CAPTIONS_FILE), arguments.pictures)

    def make() -> None:
        from escala.core.files import atomic
        from escala.data.captions.vgg16 import extract

        with atomic(arguments.output) as temporary:
            temporary.mkdir()
            extract(pictures, arguments.weights, arguments.weights_sha256, temporary)

    cli.serve_or_make(
        "features",
        code=CODE,
        inputs={"weights": arguments.weights}
        | {f"pictures/{name}": path for name, path in pictures.items()},
        parameters={"weights_sha256": arguments.weights_sha256},
        outputs={"features": arguments.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
