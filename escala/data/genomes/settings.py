"""The settings of a dataset of genomes: checks, and the part that its arrays depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.data.genomes import acquire
from escala.data.genomes.acquire.queries import QUERIES
from escala.data.paths import expanded_path
from escala.data.size import Size

# Settings that the arrays depend on, in addition to source and split.
_PREPARED_BY = ("classes", "length", "window", "deduplicate", "oversample")
#: Files that `rule codes` makes from the sequences.
ENCODED = ("codes.npy", "records.tsv", "classes.csv")


def check(settings: Mapping[str, Any]) -> None:
    """Refuse settings that contradict each other."""
    classes, source, oversample = settings["classes"], settings["source"], settings["oversample"]
    if len(classes) < 2:
        reason = "a single class leaves nothing to classify"
        raise InputError("classes", classes, reason, "name at least two classes")
    by_class = {
        f"source.{part}": source[part]
        for part in ("records", "queries", "accessions", "max_records")
        if part in source
    } | ({"oversample.rows": oversample["rows"]} if "rows" in oversample else {})
    for where, mapping in by_class.items():
        stray = sorted(set(mapping) - set(classes))
        if stray:
            remedy = f"use {', '.join(classes)}"
            raise InputError(where, stray, "not among the classes", remedy)
    known = source.get("records", classes)
    if source["type"] == "ncbi" and "lock" not in source:
        known = QUERIES | source.get("queries", {}) | source.get("accessions", {})
    missing = [name for name in classes if name not in known]
    if missing:
        part = "records" if "records" in source else "queries"
        raise InputError(f"source.{part}", missing, "classes without an entry", "add them")
    for wrong in _contradictions(settings):
        raise InputError(*wrong)


def _contradictions(settings: Mapping[str, Any]) -> Iterator[tuple[str, object, str, str]]:
    """Yield key, value, reason and remedy of settings of the split that do not fit others."""
    split, oversample = settings["split"], settings["oversample"]
    by, order = split["by"], oversample["order"]
    for part in ("groups", "leave_out"):
        if part in split and by != "group-file":
            reason = f"a split by {by} has no group file"
            yield f"split.{part}", split[part], reason, "set split.by: group-file, or remove it"
    if by == "group-file" and "groups" not in split and settings["source"]["type"] != "simulated":
        remedy = "name a TSV with the columns accession, class and group"
        yield "split.groups", None, "the key is missing", remedy
    if "within" in oversample and oversample["method"] != "windows":
        reason = f"{oversample['method']} draws no windows"
        remedy = "set oversample.method: windows, or remove it"
        yield "oversample.within", oversample["within"], reason, remedy
    if by != "random" and order == "before-split":
        reason = "balancing before the split separates genomes that a split by "
        remedy = "use after-split, or split.by: random"
        yield "oversample.order", order, f"{reason}{by} keeps together", remedy
    if settings["deduplicate"] == "encoded" and settings["window"]["method"] != "start":
        reason = "compares the starts of genomes, but rows begin elsewhere"
        yield "deduplicate", "encoded", reason, "use genome or none, or window.method: start"


def preparation(settings: Mapping[str, Any]) -> dict:
    """Return the settings that the arrays depend on, and no others.

    In a split by clusters, `similarity` links genomes. For other splits it is only the threshold of
    the leakage report.
    """
    split = {k: v for k, v in settings["split"].items() if k not in ("seeds", "groups")}
    if split["by"] == "cluster":
        split["similarity"] = settings["similarity"]
    prepared_by = {key: settings[key] for key in _PREPARED_BY}
    return {"provenance": settings["source"]["type"], **prepared_by, "split": split}


def inputs(settings: Mapping[str, Any]) -> list[Path]:
    """Return the files that the source reads; see `escala.data.genomes.acquire.inputs`."""
    return acquire.inputs(settings["source"], settings["classes"])


def prepared_from(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Return the files that the arrays are made from; `groups` only if the split uses groups."""
    split = settings["split"]
    files = {name.partition(".")[0]: folder / name for name in ENCODED}
    if split["by"] == "cluster":
        files["groups"] = folder / "clusters.tsv"
    elif "groups" in split:
        files["groups"] = Path(expanded_path(split["groups"], "split.groups"))
    elif split["by"] == "group-file":
        # A simulated source writes its metadata alongside the genomes.
        files["groups"] = folder / "sequences"
    return files


def letters_kept(settings: Mapping[str, Any]) -> int | None:
    """Return how many letters of each genome the rows are cut from; None means all."""
    oversample, within = settings["oversample"], 0
    if oversample["method"] == "windows":
        within = oversample.get("within")
    if settings["window"]["method"] != "start" or within is None:
        return None
    return settings["length"] + within


def size(settings: Mapping[str, Any]) -> Size:
    """Return the expected rows of both sides, if the number of genomes is known, and their form."""
    inputs = ({"name": "codes", "shape": (settings["length"],), "dtype": "uint8"},)
    records, window = settings["source"].get("records"), settings["window"]
    if records is None or window["method"] == "tiles":
        return Size(None, inputs)
    windows = window["per_genome"] if window["method"] == "random" else 1
    each = windows * (2 if window["reverse_complement"] else 1)
    counts = {name: count * each for name, count in records.items()}
    oversample, fraction = settings["oversample"], settings["split"]["test_fraction"]
    cut = enlarged = sum(counts.values())
    if oversample["method"] != "none":
        wanted = oversample.get("rows") or dict.fromkeys(counts, max(counts.values()))
        enlarged = sum(max(count, wanted.get(name, 0)) for name, count in counts.items())
    # Balancing before the split enlarges the test side too.
    tested = enlarged if oversample["order"] == "before-split" else cut
    return Size({"train": enlarged * (1 - fraction), "test": tested * fraction}, inputs)
