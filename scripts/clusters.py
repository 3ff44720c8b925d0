"""Sketch the genomes of a dataset and link those of a class that are near-duplicates."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", required=True, type=Path, help="folder of CLASS.fasta")
    parser.add_argument("--records", required=True, type=Path, help="records.tsv of the dataset")
    parser.add_argument(
        "--similarity", required=True, type=float, help="smallest share of common 21-mers to link"
    )
    parser.add_argument("--sketches", required=True, type=Path, help=".npz to write")
    parser.add_argument("--clusters", required=True, type=Path, help="TSV to write")
    arguments = parser.parse_args()

    def make() -> None:
        from escala.data.genomes.prepare import similarity
        from escala.data.genomes.prepare.fasta import read_records

        with cli.stage("clusters") as stage:
            records = read_records(arguments.records)
            made = similarity.sketches(arguments.sequences, records)
            made.save(arguments.sketches)
            numbers = similarity.clusters(
                made.matrix(), records["label"].to_numpy(), arguments.similarity
            )
            table = similarity.write_groups(records, numbers, arguments.clusters)
            stage.rows_in = stage.rows_out = len(records)
            stage.files = [arguments.sketches, arguments.clusters]
        for name, groups in table.groupby("class", sort=False)["group"]:
            sizes = groups.value_counts()
            print(f"{name}: {len(groups)} genomes in {len(sizes)} clusters, at most {sizes.max()}")

    cli.serve_or_make(
        "clusters",
        code="scripts.clusters",
        inputs={"sequences": arguments.sequences, "records": arguments.records},
        parameters={"similarity": arguments.similarity},
        outputs={"sketches": arguments.sketches, "clusters": arguments.clusters},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
