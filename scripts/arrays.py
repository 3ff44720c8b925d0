"""Split a dataset and write the arrays of its sides."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.core.errors import InputError
from escala.data import DEFAULT_KIND, KINDS

DESCRIPTION = "dataset.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True, choices=sorted(KINDS), help="of the dataset")
    parser.add_argument("--name", required=True, help="the dataset's name")
    parser.add_argument(
        "--preparation",
        required=True,
        type=cli.json_or_file,
        metavar="JSON",
        help="the settings that the arrays depend on",
    )
    parser.add_argument("--seed", required=True, type=int, help="seed of the split")
    parser.add_argument(
        "--inputs",
        required=True,
        type=cli.json_or_file,
        metavar="JSON",
        help="files to read, by name",
    )
    parser.add_argument("--output", required=True, type=Path, help="folder for the arrays")
    arguments = parser.parse_args()
    kind, inputs = KINDS[arguments.kind], {k: Path(v) for k, v in arguments.inputs.items()}
    outputs = {name: arguments.output / name for name in (*kind.files, DESCRIPTION)}

    def make() -> None:
        with cli.stage("arrays") as stage:
            description = kind.load("arrays").prepare(
                arguments.name, arguments.preparation, arguments.seed, inputs, arguments.output
            )
            # Their reader is chosen by this kind.
            if (named := description.get("kind", DEFAULT_KIND)) != kind.name:
                reason = f"the dataset is of the kind {kind.name}, and its arrays name another"
                remedy = "use the kind's name in its module arrays"
                raise InputError(arguments.output / DESCRIPTION, named, reason, remedy)
            counts = description.get("counts", {})
            stage.rows_out = sum(filter(None, description["rows"].values()))
            # Without balancing these are all rows.
            stage.rows_in = sum(each.get("kept", 0) for each in counts.values()) or stage.rows_out
            made = [inner for path in outputs.values() for inner in (path, *path.rglob("*"))]
            stage.files = [path for path in made if path.is_file()]
        for name, stages in counts.items():
            print(name, *(f"{stage_name} {rows}" for stage_name, rows in stages.items()))
        for name in description.get("not_separable", ()):
            print(f"{name} has one group: not separable, all its rows are trained on")

    if not kind.files:
        # Files stay where they are: nothing is worth a place in the store.
        make()
        return
    cli.serve_or_make(
        "arrays",
        code="scripts.arrays",
        chosen=[kind.module("arrays")],
        inputs=inputs,
        parameters={
            "kind": kind.name,
            "name": arguments.name,
            "preparation": arguments.preparation,
            "seed": arguments.seed,
        },
        outputs=outputs,
        optional=kind.files,
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
