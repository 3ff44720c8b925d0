"""The kind `genomes`: nucleotide sequences of classes, such as viruses."""

from pathlib import Path

from escala.core.errors import InputError
from escala.data import settings as common
from escala.data.genomes import acquire
from escala.data.genomes.acquire import QUERIES
from escala.data.paths import expand_path
from escala.data.settings import Settings, Size

#: Files that `rule codes` makes from the sequences.
ENCODED = ("codes.npy", "records.tsv", "classes.csv")


def check(settings: Settings) -> None:
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
    # A source without `records` has an entry for every class.
    known = source.get("records", classes)
    if source["type"] == "ncbi" and "lock" not in source:
        known = QUERIES | source.get("queries", {}) | source.get("accessions", {})
    missing = [name for name in classes if name not in known]
    if missing:
        part = "records" if "records" in source else "queries"
        raise InputError(f"source.{part}", missing, "classes without an entry", "add them")
    split = settings["split"]
    by, order = split["by"], oversample["order"]
    for part in ("groups", "leave_out"):
        if part in split and by != "group-file":
            reason = f"a split by {by} has no group file"
            raise InputError(
                f"split.{part}", split[part], reason, "set split.by: group-file, or remove it"
            )
    if by == "group-file" and "groups" not in split and settings["source"]["type"] != "simulated":
        remedy = "name a TSV with the columns accession, class and group"
        raise InputError("split.groups", None, "the key is missing", remedy)
    if "within" in oversample and oversample["method"] != "windows":
        reason = f"{oversample['method']} draws no windows"
        remedy = "set oversample.method: windows, or remove it"
        raise InputError("oversample.within", oversample["within"], reason, remedy)
    if by != "random" and order == "before-split":
        reason = "balancing before the split separates genomes that a split by "
        remedy = "use after-split, or split.by: random"
        raise InputError("oversample.order", order, f"{reason}{by} keeps together", remedy)
    if settings["deduplicate"] == "encoded" and settings["window"]["method"] != "start":
        reason = "compares the starts of genomes, but rows begin elsewhere"
        raise InputError(
            "deduplicate", "encoded", reason, "use genome or none, or window.method: start"
        )


def preparation(settings: Settings) -> dict:
    """Return the settings that the arrays depend on, and no others.

    `similarity` links genomes in a split by clusters. In other splits, `similarity` is only the
    threshold of the leakage report.
    """
    prepared = common.preparation(settings)
    split = {key: value for key, value in prepared["split"].items() if key != "groups"}
    if split["by"] == "cluster":
        split["similarity"] = settings["similarity"]
    return prepared | {"split": split}


def inputs(settings: Settings) -> list[Path]:
    """Return the files that the source reads; see `escala.data.genomes.acquire.inputs`."""
    return acquire.inputs(settings["source"], settings["classes"])


def preparation_inputs(settings: Settings, folder: Path) -> dict[str, Path]:
    """Return the files that the arrays are made from; `groups` only if the split uses groups."""
    split = settings["split"]
    files = {name.partition(".")[0]: folder / name for name in ENCODED}
    if split["by"] == "cluster":
        files["groups"] = folder / "clusters.tsv"
    elif "groups" in split:
        files["groups"] = Path(expand_path(split["groups"], "split.groups"))
    elif split["by"] == "group-file":
        # A simulated source writes its metadata alongside the genomes.
        files["groups"] = folder / "sequences"
    return files


def letters_kept(settings: Settings) -> int | None:
    """Return the number of letters of each genome that rows are cut from; None means all."""
    oversample, within = settings["oversample"], 0
    if oversample["method"] == "windows":
        within = oversample.get("within")
    if settings["window"]["method"] != "start" or within is None:
        return None
    # Windows are drawn in the first `length + within` letters.
    return settings["length"] + within


def size(settings: Settings) -> Size:
    """Return the letters of a row, and the expected training rows if they can be known."""
    records, window = settings["source"].get("records"), settings["window"]
    if records is None or window["method"] == "tiles":
        return Size(None, settings["length"])
    windows = window["per_genome"] if window["method"] == "random" else 1
    of_genome = windows * (2 if window["reverse_complement"] else 1)
    counts = {name: count * of_genome for name, count in records.items()}
    oversample, rows = settings["oversample"], sum(counts.values())
    if oversample["method"] != "none":
        wanted = oversample.get("rows") or dict.fromkeys(counts, max(counts.values()))
        rows = sum(max(count, wanted.get(name, 0)) for name, count in counts.items())
    return Size(rows * (1 - settings["split"]["test_fraction"]), settings["length"])
