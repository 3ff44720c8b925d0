"""The settings of a dataset of genomes: checks, and the part that its arrays depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
#: Key, value, reason and remedy of an error in an experiment.
Error = Callable[[str, object, str, str], InputError]


def check(name: str, settings: Mapping[str, Any], error: Error) -> None:
    """Refuse settings that contradict each other.

    Raises
    ------
    InputError : made by `error`.
    """
    _check_classes(f"datasets.{name}", settings, error)
    _check_split(f"datasets.{name}", settings, error)


def _check_classes(key: str, settings: Mapping[str, Any], error: Error) -> None:
    classes, source = settings["classes"], settings["source"]
    if len(classes) < 2:
        raise error(
            f"{key}.classes",
            classes,
            "a single class leaves nothing to classify",
            "name at least two classes",
        )
    by_class = {
        f"{key}.source.{part}": source[part]
        for part in ("records", "queries", "accessions", "max_records")
        if part in source
    }
    if "rows" in settings["oversample"]:
        by_class[f"{key}.oversample.rows"] = settings["oversample"]["rows"]
    for where, mapping in by_class.items():
        stray = sorted(set(mapping) - set(classes))
        if stray:
            raise error(where, stray, "not among the classes", f"use {', '.join(classes)}")
    known = source.get("records", classes)
    if source["type"] == "ncbi" and "lock" not in source:
        known = QUERIES | source.get("queries", {}) | source.get("accessions", {})
    missing = [c for c in classes if c not in known]
    if missing:
        part = "records" if "records" in source else "queries"
        raise error(f"{key}.source.{part}", missing, "classes without an entry", "add them")


def _check_split(key: str, settings: Mapping[str, Any], error: Error) -> None:
    split, oversample = settings["split"], settings["oversample"]
    by, order = split["by"], oversample["order"]
    for part in ("groups", "leave_out"):
        if part in split and by != "group-file":
            raise error(
                f"{key}.split.{part}",
                split[part],
                f"a split by {by} has no group file",
                "set split.by: group-file, or remove it",
            )
    if by == "group-file" and "groups" not in split and settings["source"]["type"] != "simulated":
        raise error(
            f"{key}.split.groups",
            None,
            "the key is missing",
            "name a TSV with the columns accession, class and group",
        )
    if "within" in oversample and oversample["method"] != "windows":
        raise error(
            f"{key}.oversample.within",
            oversample["within"],
            f"{oversample['method']} draws no windows",
            "set oversample.method: windows, or remove it",
        )
    if by != "random" and order == "before-split":
        raise error(
            f"{key}.oversample.order",
            order,
            f"balancing before the split separates genomes that a split by {by} keeps together",
            "use after-split, or split.by: random",
        )
    if settings["deduplicate"] == "encoded" and settings["window"]["method"] != "start":
        raise error(
            f"{key}.deduplicate",
            "encoded",
            "compares the starts of genomes, but rows begin elsewhere",
            "use genome or none, or window.method: start",
        )


def preparation(settings: Mapping[str, Any]) -> dict:
    """Return the settings that the arrays depend on, and no others.

    In a split by clusters, `similarity` links genomes. For other splits it is only the threshold of
    the leakage report.
    """
    split = {k: v for k, v in settings["split"].items() if k not in ("seeds", "groups")}
    if split["by"] == "cluster":
        split["similarity"] = settings["similarity"]
    return {
        "provenance": settings["source"]["type"],
        **{key: settings[key] for key in _PREPARED_BY},
        "split": split,
    }


def inputs(settings: Mapping[str, Any]) -> list[Path]:
    """Return the files that the source reads; see `escala.data.genomes.acquire.inputs`."""
    return acquire.inputs(settings["source"], settings["classes"])


def prepared_from(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Return the files that the arrays are made from; `groups` only if the split uses groups.

    Raises
    ------
    InputError : a variable in the path of the groups is not set.
    """
    encoded = {name.partition(".")[0]: folder / name for name in ENCODED}
    return encoded | _groups(settings, folder)


def _groups(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    split = settings["split"]
    if split["by"] == "random":
        return {}
    if split["by"] == "cluster":
        return {"groups": folder / "clusters.tsv"}
    if "groups" not in split:
        # A simulated source writes its metadata beside the genomes.
        return {"groups": folder / "sequences"}
    return {"groups": Path(expanded_path(split["groups"], "split.groups"))}


def letters_kept(settings: Mapping[str, Any]) -> int | None:
    """Return how many letters of each genome the rows are cut from; None means all."""
    oversample, within = settings["oversample"], 0
    if oversample["method"] == "windows":
        within = oversample.get("within")
    if settings["window"]["method"] != "start" or within is None:
        return None
    return settings["length"] + within


def size(settings: Mapping[str, Any]) -> Size:
    """Return what the settings tell about a split; see `escala.data.size`."""
    return Size(
        _rows(settings),
        ({"name": "codes", "shape": (settings["length"],), "dtype": "uint8"},),
        (len(settings["classes"]),),
    )


def _rows(settings: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the expected rows of both sides, None if the number of genomes is unknown."""
    records, window = settings["source"].get("records"), settings["window"]
    if records is None or window["method"] == "tiles":
        return None
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
    return {"train": enlarged * (1 - fraction), "test": tested * fraction}
