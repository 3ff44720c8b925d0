"""Make the files of a dataset of genomes. A function serves the rule with its name."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

from escala import cli
from escala.data import ACQUIRE, KINDS

#: Keys of a source that name a place or a person, and so do not affect the data.
PLACES = ("folder", "file", "labels", "lock", "email")


def _code(settings: SimpleNamespace):
    return KINDS["genomes"].code()


@cli.step(
    lambda settings: KINDS["genomes"].code(ACQUIRE),
    # These settings decide the genomes. The content of folders and lists is an input, so their
    # paths do not count.
    parameters=lambda settings: {
        "source": {key: value for key, value in settings.source.items() if key not in PLACES},
        "classes": settings.classes,
        # A mirror of NCBI may give other records.
        "server": os.environ.get("ESCALA_EUTILS_URL")
        if settings.source.get("type") == "ncbi"
        else None,
    },
)
def genomes(output: cli.Files, settings: SimpleNamespace, files: list[Path]) -> None:
    """Fetch or simulate the genomes of a dataset: a FASTA file per class and a lock file."""
    import pandas as pd

    from escala.data.genomes.acquire import acquire

    partial = Path(settings.partial)
    acquire(settings.source, settings.classes, output["sequences"], output["lock"], partial)
    locked = pd.read_csv(output["lock"], sep="\t", dtype={"class": str}, keep_default_na=False)
    for name, lengths in locked.groupby("class", sort=False)["length"]:
        print(f"{name}: {len(lengths)} records of {lengths.min()} to {lengths.max()} letters")


@cli.step(_code)
def codes(output: cli.Files, settings: SimpleNamespace, sequences: Path) -> None:
    """Encode one FASTA file per class, drop exact duplicates and report each class."""
    from escala.data.genomes.arrays import encode_classes

    began = perf_counter()
    report = encode_classes(sequences, output=output["codes"].parent, **vars(settings))
    records, kept = report["records"].sum(), report["kept"].sum()
    cli.print_stage("encode", began, records, kept, [output["codes"]])
    print(report.to_string(index=False))


@cli.step(_code)
def clusters(output: cli.Files, settings: SimpleNamespace, sequences: Path, records: Path) -> None:
    """Sketch the genomes of a dataset, and link near-duplicates within a class."""
    from escala.data.genomes import similarity
    from escala.data.genomes.arrays import read_records

    began, table = perf_counter(), read_records(records)
    made = similarity.sketches(sequences, table)
    made.save(output["sketches"])
    numbers = similarity.clusters(made.matrix(), table["label"].to_numpy(), settings.similarity)
    groups = similarity.write_groups(table, numbers, output["clusters"])
    cli.print_stage("clusters", began, len(table), len(table), output.values())
    for name, members in groups.groupby("class", sort=False)["group"]:
        sizes = members.value_counts()
        print(f"{name}: {len(members)} genomes in {len(sizes)} clusters, at most {sizes.max()}")


@cli.step(
    _code,
    # These files give the genome of each row of a split.
    inputs=lambda settings, dataset, sketches: {
        "sketches": sketches,
        **{name: dataset.with_name(name) for name in ("train_genomes.npy", "test_genomes.npy")},
    },
)
def leakage(output: cli.Files, settings: SimpleNamespace, dataset: Path, sketches: Path) -> None:
    """Compute the similarity of each test row's genome to the nearest training genome."""
    from escala.core.files import write_json
    from escala.data.genomes.similarity import leakage, write_similarity

    similarity = write_similarity(dataset.parent, sketches, output["similarity"])
    limit = settings.similarity
    fraction = leakage(similarity, limit)
    write_json(output["report"], {"similarity": limit, "fraction": fraction})
    print(
        f"{fraction:.1%} of {len(similarity)} test rows have a near-duplicate among the "
        f"training genomes: at least {limit:g} of their 21-mers in common"
    )
