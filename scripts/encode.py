"""Encode one FASTA file per class, drop exact duplicates and report the content of each class."""

from __future__ import annotations

from pathlib import Path

from escala import cli
from escala.data import KINDS


def main() -> None:
    given = cli.options(
        __doc__,
        sequences=Path,  # The folder of CLASS.fasta.
        classes=[str],
        length=int,
        letters_kept=lambda text: None if text == "all" else int(text),
        deduplicate=str,
        output=Path,
    )
    files = {"codes": "codes.npy", "records": "records.tsv", "classes": "classes.csv"}
    outputs = {name: given.output / file for name, file in files.items()}
    settings = {
        key: getattr(given, key) for key in ("classes", "length", "letters_kept", "deduplicate")
    }

    def make() -> None:
        from escala.data.genomes.prepare.fasta import encode_classes

        with cli.stage("encode") as stage:
            report = encode_classes(given.sequences, output=given.output, **settings)
            stage.rows_in, stage.rows_out = report["records"].sum(), report["kept"].sum()
            stage.files = [outputs["codes"]]
        print(report.to_string(index=False))

    cli.serve_or_make(
        "encode",
        code=KINDS["genomes"].code(),
        inputs={name: given.sequences / f"{name}.fasta" for name in given.classes},
        parameters=settings,
        outputs=outputs,
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
