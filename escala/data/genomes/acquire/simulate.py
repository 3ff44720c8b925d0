"""Outbreak-like genomes evolved along coalescent trees, with known lineages.

A coalescent tree of lineages grows from the root genome of a class. A coalescent tree of records
grows from the ancestor of each lineage. Genomes mutate along the branches. Simulated sequencing
then makes the genomes incomplete, with some ambiguous letters, and in upper or lower case.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import dendropy
import numpy as np
from dendropy.simulate import treesim
from tqdm import tqdm

from escala.data.nucleotides import write_record

LETTERS = np.frombuffer(b"ACGT", np.uint8)
# IUPAC letters for two bases (Cornish-Bowden 1985): row i holds the letters that include base i.
AMBIGUOUS = np.frombuffer(b"RWMYSMRSKYWK", np.uint8).reshape(4, 3)
UNKNOWN, LOWER_CASE = ord("N"), 0x20


class Profile(NamedTuple):
    """The root genome of a class: its number of letters, their composition, and a related class.

    The composition is the fractions of A, C, G and T. A root with a related class is derived from
    the root of that class.
    """

    length: int
    composition: tuple[float, float, float, float]
    relative: str | None = None


# Rounded lengths and compositions of genomes in GenBank; the code scales the fractions to the sum
# 1.
PROFILES = {
    "COVID": Profile(29_900, (0.299, 0.184, 0.196, 0.321)),
    "DENGUE": Profile(10_700, (0.323, 0.206, 0.258, 0.214)),
    "EBOLA": Profile(18_950, (0.320, 0.215, 0.198, 0.269)),
    "MERS": Profile(30_100, (0.262, 0.203, 0.209, 0.326)),
    "SARS": Profile(29_700, (0.285, 0.200, 0.208, 0.307), relative="COVID"),
}
GENERIC = Profile(15_000, (0.25, 0.25, 0.25, 0.25))


class Difficulty(NamedTuple):
    """How hard a set of genomes is to classify: each quantity grows linearly with the setting.

    Attributes
    ----------
    kinship : fraction of a root's positions that come from an ancestor common to all classes.
        Unrelated roots differ at 0.74 of their positions, roots of difficulty 1 at 0.30 to 0.45.
    close_kinship : fraction of a root's positions that come from the root of its related class.
        SARS differs from COVID at 0.24 of the positions, at 0.20 for difficulty 0.5 and 0.16 for 1.
    divergence : substitutions per site from the root of a class to each record.
    ends : mean number of letters missing at each end of a record.
    ambiguous : fraction of letters replaced by an IUPAC letter for two bases.
    unknown : expected fraction of a record lying in runs of N.
    """

    kinship: float
    close_kinship: float
    divergence: float
    ends: float
    ambiguous: float
    unknown: float

    @classmethod
    def at(cls, setting: float) -> Difficulty:
        """Return the quantities for a setting in [0, 1]."""
        least, growth = (0, 0.70, 0.005, 1, 0.0001, 0.001), (0.8, 0.12, 0.1, 40, 0.02, 0.05)
        return cls(*(low + rise * setting for low, rise in zip(least, growth, strict=True)))


# Fraction of the divergence that arises after the ancestor of a lineage.
WITHIN_LINEAGE = 0.2
# Growth rate of the epidemic per coalescent unit, enough for the star-like trees of outbreaks.
GROWTH = 20.0
# Transitions are kappa times as frequent as each transversion (Kimura 1980).
KAPPA = 4.0
INDELS_PER_SUBSTITUTION = 0.01
INDEL_LETTERS = 3
UNKNOWN_RUN_LETTERS = 100
LOWER_CASE_RECORDS, SOFT_MASKED_RECORDS = 0.1, 0.05


def fetch(source: dict, classes: list[str], folder: Path) -> None:
    """Write `{class}.fasta` for every class, and `lineages.tsv` (accession, class, lineage).

    Equal `seed`, `difficulty` in [0, 1], class name and number of `records` give equal bytes,
    independent of other classes. Memory is bounded by a few genomes.
    """
    with open(folder / "lineages.tsv", "w", encoding="utf-8") as lineages:
        lineages.write("accession\tclass\tlineage\n")
        for name in classes:
            count = source["records"][name]
            genomes = simulate(name, count, source["seed"], source.get("difficulty", 0.5))
            with open(folder / f"{name}.fasta", "w", encoding="utf-8") as fasta:
                shown = tqdm(genomes, desc=name, total=count, unit="genome", disable=None)
                for number, (lineage, letters) in enumerate(shown, start=1):
                    accession = f"SIM_{name}_{number:06d}"
                    write_record(fasta, accession, letters.tobytes().decode("ascii"))
                    lineages.write(f"{accession}\t{name}\t{name}.{lineage + 1}\n")


Genomes = Iterator[tuple[int, np.ndarray]]


def simulate(name: str, count: int, seed: int, difficulty: float) -> Genomes:
    """Yield the lineage (from 0) and the letters (uint8, ASCII) of `count` genomes of a class."""
    level = Difficulty.at(difficulty)
    rng = _stream(seed, name, "records")
    # About √count / 3 lineages of unequal size, none empty.
    lineages = min(count, max(2, round(count**0.5 / 3)))
    sizes = list(1 + rng.multinomial(count - lineages, rng.dirichlet(np.full(lineages, 2.0))))
    between, within = (1 - WITHIN_LINEAGE) * level.divergence, WITHIN_LINEAGE * level.divergence
    ancestors = _evolve(root(name, seed, level), len(sizes), between, rng)
    for lineage, (ancestor, size) in enumerate(zip(ancestors, sizes, strict=True)):
        for genome in _evolve(ancestor, size, within, rng):
            yield lineage, _sequence(genome, level, rng)


def root(name: str, seed: int, level: Difficulty) -> np.ndarray:
    """Return the root genome of a class, uint8 codes 0 to 3 for A, C, G, T."""
    composition = np.array(PROFILES.get(name, GENERIC).composition)
    limits = np.cumsum(composition / composition.sum())[:3]
    return np.searchsorted(limits, _quantiles(name, seed, level)).astype(np.uint8)


def _quantiles(name: str, seed: int, level: Difficulty) -> np.ndarray:
    """Return a number in [0, 1) per position of a root, float64.

    Related roots have some of these numbers in common, and not letters. Each class maps numbers to
    letters by its own composition, so that kinship does not change the composition.
    """
    profile = PROFILES.get(name, GENERIC)
    rng = _stream(seed, name, "root")
    if profile.relative:
        kin, kinship = _quantiles(profile.relative, seed, level), level.close_kinship
    else:
        kin, kinship = _stream(seed, "ancestor of all").random(profile.length), level.kinship
    numbers = rng.random(profile.length)
    kin = kin[: profile.length]
    inherited = np.flatnonzero(rng.random(len(kin)) < kinship)
    numbers[inherited] = kin[inherited]
    return numbers


def _stream(seed: int, *names: str) -> np.random.Generator:
    """Return an independent random stream for a seed and a sequence of names."""
    digest = hashlib.sha256("\0".join(names).encode()).digest()
    return np.random.default_rng(np.random.SeedSequence([seed, int.from_bytes(digest, "big")]))


def _evolve(
    ancestor: np.ndarray, tips: int, divergence: float, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the genomes at the tips of a coalescent tree, each at `divergence` from `ancestor`.

    The population grows exponentially. The tree is drawn for a population of constant size, and its
    times are rescaled as in Slatkin & Hudson (1991, Genetics 129:555).
    """
    if tips == 1:
        yield _mutate(ancestor, divergence, rng)
        return
    tree = treesim.pure_kingman_tree(
        dendropy.TaxonNamespace(str(tip) for tip in range(tips)),
        pop_size=1,
        rng=random.Random(int(rng.integers(2**63))),
    )
    tree.calc_node_ages(ultrametricity_precision=False)
    for node in tree.preorder_node_iter():
        node.age = float(np.log1p(GROWTH * node.age)) / GROWTH
    height = tree.seed_node.age
    pending = [(child, ancestor) for child in tree.seed_node.child_node_iter()]
    while pending:
        node, parent = pending.pop()
        genome = _mutate(parent, (node.parent_node.age - node.age) / height * divergence, rng)
        if node.is_leaf():
            yield genome
        else:
            pending.extend((child, genome) for child in node.child_node_iter())


def _mutate(genome: np.ndarray, divergence: float, rng: np.random.Generator) -> np.ndarray:
    """Return a copy of `genome` with substitutions and indels; `divergence` is per site."""
    substitutions = rng.poisson(divergence * len(genome))
    indels = rng.poisson(divergence * len(genome) * INDELS_PER_SUBSTITUTION)
    genome = genome.copy()
    places = rng.integers(len(genome), size=substitutions)
    # With codes A, C, G, T = 0..3, XOR with 2 is a transition, XOR with 1 or 3 a transversion.
    transition = rng.random(substitutions) < KAPPA / (KAPPA + 2)
    genome[places] ^= np.where(transition, 2, rng.choice([1, 3], substitutions)).astype(np.uint8)
    for _ in range(indels):
        place, letters = rng.integers(len(genome)), rng.geometric(1 / INDEL_LETTERS)
        inserted = rng.integers(4, size=letters, dtype=np.uint8)
        genome = (
            np.concatenate((genome[:place], inserted, genome[place:]))
            if rng.random() < 0.5
            else np.concatenate((genome[:place], genome[place + letters :]))
        )
    return genome


def _sequence(genome: np.ndarray, level: Difficulty, rng: np.random.Generator) -> np.ndarray:
    """Return the letters (uint8, ASCII) of a genome after simulated sequencing."""
    start, end = np.minimum(rng.exponential(level.ends, size=2).astype(int), len(genome) // 4)
    genome = genome[start : len(genome) - end]
    letters = LETTERS[genome]
    places = rng.integers(len(genome), size=rng.poisson(level.ambiguous * len(genome)))
    letters[places] = AMBIGUOUS[genome[places], rng.integers(3, size=len(places))]
    for _ in range(rng.poisson(level.unknown * len(genome) / UNKNOWN_RUN_LETTERS)):
        place = rng.integers(len(genome))
        letters[place : place + rng.geometric(1 / UNKNOWN_RUN_LETTERS)] = UNKNOWN
    style = rng.random()
    if style < LOWER_CASE_RECORDS:
        letters |= LOWER_CASE
    elif style < LOWER_CASE_RECORDS + SOFT_MASKED_RECORDS:
        place = rng.integers(len(genome))
        letters[place : place + len(genome) // 10] |= LOWER_CASE
    return letters
