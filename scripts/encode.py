"""Encode one FASTA file per class, drop exact duplicates and report the content of each class."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", required=True, type=Path, help="folder of CLASS.fasta")
    parser.add_argument("--classes", required=True, nargs="+", metavar="CLASS")
    parser.add_argument("--length", required=True, type=int, help="letters of a row")
    parser.add_argument(
        "--letters-kept",
        type=lambda text: None if text == "all" else int(text),
        metavar="N",
        help="letters to keep from the start of each genome; default: all",
    )
    parser.add_argument("--deduplicate", required=True, choices=["none", "genome", "encoded"])
    parser.add_argument("--output", required=True, type=Path, help="folder for the results")
    arguments = parser.parse_args()

    def make() -> None:
        from escala.data.genomes.prepare.fasta import encode_classes

        with cli.stage("encode") as stage:
            report = encode_classes(
                arguments.sequences,
                arguments.classes,
                arguments.length,
                arguments.deduplicate,
                arguments.output,
                arguments.letters_kept,
            )
            stage.rows_in, stage.rows_out = report["records"].sum(), report["kept"].sum()
            stage.files = [outputs["codes"]]
        print(report.to_string(index=False))

    outputs = {
        "codes": arguments.output / "codes.npy",
        "records": arguments.output / "records.tsv",
        "classes": arguments.output / "classes.csv",
    }
    cli.serve_or_make(
        "encode",
        code="scripts.encode",
        inputs={name: arguments.sequences / f"{name}.fasta" for name in arguments.classes},
        parameters={
            "classes": arguments.classes,
            "length": arguments.length,
            "letters_kept": arguments.letters_kept,
            "deduplicate": arguments.deduplicate,
        },
        outputs=outputs,
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
