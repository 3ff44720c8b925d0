"""Make the files of a dataset of genomes, each function by the rule of its name."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

from escala import cli
from escala.data import ACQUIRE, KINDS

#: Keys of a source that name a place or a person and do not affect the data.
PLACES = ("folder", "lock", "email")


def _code(given: SimpleNamespace):
    return KINDS["genomes"].code()


@cli.step(
    lambda given: KINDS["genomes"].code(ACQUIRE),
    # What decides the genomes: of folders and lists their content is an input instead.
    parameters=lambda given: {
        "source": {key: value for key, value in given.source.items() if key not in PLACES},
        "classes": given.classes,
        # A mirror of NCBI is another source.
        "server": os.environ.get("ESCALA_EUTILS_URL")
        if given.source.get("type") == "ncbi"
        else None,
    },
)
def genomes(output: cli.Files, given: SimpleNamespace, files: list[Path]) -> None:
    """Fetch or simulate the genomes of a dataset: a FASTA file per class and a lock file."""
    import pandas as pd

    from escala.data.genomes.acquire import acquire

    partial = Path(given.partial)
    acquire(given.source, given.classes, output["sequences"], output["lock"], partial)
    locked = pd.read_csv(output["lock"], sep="\t", dtype={"class": str}, keep_default_na=False)
    for name, lengths in locked.groupby("class", sort=False)["length"]:
        print(f"{name}: {len(lengths)} records of {lengths.min()} to {lengths.max()} letters")


@cli.step(_code)
def codes(output: cli.Files, given: SimpleNamespace, sequences: Path) -> None:
    """Encode one FASTA file per class, drop exact duplicates and report each class."""
    from escala.data.genomes.arrays import encode_classes

    began = perf_counter()
    report = encode_classes(sequences, output=output["codes"].parent, **vars(given))
    records, kept = report["records"].sum(), report["kept"].sum()
    cli.print_stage("encode", began, records, kept, [output["codes"]])
    print(report.to_string(index=False))


@cli.step(_code)
def clusters(output: cli.Files, given: SimpleNamespace, sequences: Path, records: Path) -> None:
    """Sketch the genomes of a dataset and link those of a class that are near-duplicates."""
    from escala.data.genomes import similarity
    from escala.data.genomes.arrays import read_records

    began, table = perf_counter(), read_records(records)
    made = similarity.sketches(sequences, table)
    made.save(output["sketches"])
    numbers = similarity.clusters(made.matrix(), table["label"].to_numpy(), given.similarity)
    groups = similarity.write_groups(table, numbers, output["clusters"])
    cli.print_stage("clusters", began, len(table), len(table), output.values())
    for name, members in groups.groupby("class", sort=False)["group"]:
        sizes = members.value_counts()
        print(f"{name}: {len(members)} genomes in {len(sizes)} clusters, at most {sizes.max()}")


@cli.step(
    _code,
    # These files tell which genomes the rows of a split are of.
    inputs=lambda given, dataset, sketches: {
        "sketches": sketches,
        **{name: dataset.with_name(name) for name in ("train_genomes.npy", "test_genomes.npy")},
    },
)
def leakage(output: cli.Files, given: SimpleNamespace, dataset: Path, sketches: Path) -> None:
    """Compute the similarity of each test row's genome to the nearest training genome."""
    from escala.core.files import write_json
    from escala.data.genomes.similarity import leakage, write_similarity

    similarity = write_similarity(dataset.parent, sketches, output["similarity"])
    limit = given.similarity
    fraction = leakage(similarity, limit)
    write_json(output["report"], {"similarity": limit, "fraction": fraction})
    print(
        f"{fraction:.1%} of {len(similarity)} test rows have a near-duplicate among the "
        f"training genomes: at least {limit:g} of their 21-mers in common"
    )
