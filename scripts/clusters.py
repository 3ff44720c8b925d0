"""Sketch the genomes of a dataset and link those of a class that are near-duplicates."""

from __future__ import annotations

from pathlib import Path

from escala import cli
from escala.data import KINDS


def main() -> None:
    given = cli.options(
        __doc__, sequences=Path, records=Path, similarity=float, sketches=Path, clusters=Path
    )

    def make() -> None:
        from escala.data.genomes.prepare import similarity
        from escala.data.genomes.prepare.fasta import read_records

        with cli.stage("clusters") as stage:
            records = read_records(given.records)
            made = similarity.sketches(given.sequences, records)
            made.save(given.sketches)
            labels = records["label"].to_numpy()
            numbers = similarity.clusters(made.matrix(), labels, given.similarity)
            table = similarity.write_groups(records, numbers, given.clusters)
            stage.rows_in = stage.rows_out = len(records)
            stage.files = [given.sketches, given.clusters]
        for name, groups in table.groupby("class", sort=False)["group"]:
            sizes = groups.value_counts()
            print(f"{name}: {len(groups)} genomes in {len(sizes)} clusters, at most {sizes.max()}")

    cli.serve_or_make(
        "clusters",
        code=KINDS["genomes"].code(),
        inputs={"sequences": given.sequences, "records": given.records},
        parameters={"similarity": given.similarity},
        outputs={"sketches": given.sketches, "clusters": given.clusters},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
