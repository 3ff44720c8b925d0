"""Draft an experiment on a user's data: do more processes, or more threads, pay for it?

The names of the files tell the kind of the data.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from escala.core import plugins
from escala.core.engines import DEFAULT
from escala.core.errors import InputError
from escala.core.readable import with_noun
from escala.core.text import PACKED_ENDINGS, read_table
from escala.data import ACQUIRE, KINDS
from escala.data.genomes.acquire import files
from escala.data.paths import expand_path, is_hidden
from escala.data.settings import derive
from escala.draft.file import PROCESSES, Draft, compare_settings
from escala.experiment import Experiment
from escala.experiment.runs import ONE_PROCESS, one_process
from escala.experiment.schema import NAME_RULE, is_name
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS, read_declaration

if TYPE_CHECKING:
    import pandas as pd

#: The word that stands for simulated genomes, in place of a path.
SIMULATED = "simulated"
_CLASSES = ["COVID", "DENGUE", "EBOLA", "MERS", "SARS"]

#: The defaults of a draft: what it compares, and for how long. The strategy is the first of the
#: default engine that has several ranks.
DEFAULTS = {
    "strategies": next(
        (name,)
        for name, strategy in STRATEGIES.items()
        if (strategy.engine or "").startswith(f"{DEFAULT}.") and not strategy.layouts.one_rank
    ),
    "layouts": ("1x2",),
    "epochs": 5,
    "repeats": 7,
}
#: Rows of a step, all ranks together.
_ROWS = 64
#: Learning rates of workloads if their optimiser needs a higher rate than Adam, the schema's
#: default.
_RATES = {"mlp": 0.1, "resnet34": 0.05}
#: The workload that replaces the usual workload if an engine has no model of the usual one.
_OTHERWISE = {"cifar-cnn": "resnet34"}
#: Fewer records than this of a class may leave none on the test side.
_FEWEST = 4
#: A column with more values than this is not proposed as the class.
_MOST_CLASSES = 50
#: Larger data, in bytes, are not read before the experiment is written.
_READ = 2**28
_NOTES = {
    "repeats": "A 95 % interval of a ratio needs five paired runs. With seven, one run may fail.",
    "datasets": "Each key has its defaults in docs/reference/configuration.md.",
    "batch": "The ranks divide these rows, so any number of ranks makes the same updates.",
    "length": "Longer rows take longer to train.",
    "size": "Larger pictures take longer to train.",
}


@dataclass(frozen=True)
class Dataset:
    """Settings of a dataset that were derived from a user's data.

    Attributes
    ----------
    name : the name of the dataset, made from the name of the data.
    workload : the default workload for the dataset; None if Escala has no workload for such data.
    settings : the settings of the dataset, without `split.seeds`.
    splits_by_repeat : whether each repeat trains and tests on its own split.
    not_read : names of other files and folders in the user's folder.
    sentences : what was seen in the data, and what was assumed.
    """

    name: str
    workload: str | None
    settings: dict[str, Any] = field(hash=False)
    splits_by_repeat: bool = False
    not_read: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()


def recognise(
    data: str, labels: str | None = None, label: str | None = None, drop: Sequence[str] = ()
) -> Dataset:
    """Return the dataset that a path of a user's data stands for.

    Only names are read; of arrays, the targets are read, too; of a FASTA file with labels, the
    headers and the table.

    Parameters
    ----------
    data : a folder of FASTA files, or one FASTA file; a CSV or TSV file; a folder of pictures, of
        the files of MNIST or of CIFAR-10, or CIFAR-10's archive; a `.npz` file or a folder of
        `.npy` files; or `SIMULATED`. Environment variables and `~` are expanded.
    labels : the table with a row for each record of one FASTA file.
    label : the column of the class in `labels`, or in a CSV or TSV file. If several columns of
        `labels` may be the class, a question in the terminal asks for it.
    drop : columns of a CSV or TSV file to leave out.

    Raises
    ------
    InputError : the path does not exist, or is no such file or folder; or an option is missing, or
        is not one for such data.
    """
    if data == SIMULATED:
        source = {"type": SIMULATED, "seed": 1, "records": dict.fromkeys(_CLASSES, 200)}
        genomes = _settings_of_genomes(source, _CLASSES, {"method": "none"})
        dataset = Dataset(SIMULATED, "virus-cnn", genomes)
    elif not (path := Path(expand_path(data, "data"))).exists():
        raise InputError("data", data, "there is no such file or folder", "name your data")
    elif path.is_file() and files.is_fasta(path):
        dataset = _labelled_genomes(path, data, labels, label)
        labels = label = None
    else:
        dataset = _table(path, data)
        if dataset and (label or drop):
            more = ({"label": label} if label else {}) | ({"drop": [*drop]} if drop else {})
            source = {"source": dataset.settings["source"] | more}
            dataset, label, drop = replace(dataset, settings=dataset.settings | source), None, ()
        for recogniser in (_genomes, _public_pictures, _arrays, _pictures):
            dataset = dataset or recogniser(path, data)
    for option, value in (("--labels", labels), ("--label", label), ("--drop", drop)):
        if dataset and value:
            remedy = "leave it out; --labels is for a FASTA file, --label also for a table, and "
            raise InputError(option, value, f"is not for {data}", f"{remedy}--drop for a table")
    if dataset:
        return dataset
    raise InputError(
        "data",
        data,
        "is not a folder of FASTA files, pictures or .npy files, not a FASTA, CSV, TSV or .npz "
        "file, and neither MNIST nor CIFAR-10",
        "name one of these, and not a folder around it (FASTA files end in "
        f"{', '.join(files.ENDINGS)}, pictures are PNG or JPEG), or write the experiment by hand: "
        "docs/reference/configuration.md",
    )


def _genomes(path: Path, data: str) -> Dataset | None:
    """Recognise a folder with a FASTA file for each class."""
    by_class = files.files_by_class(path) if path.is_dir() else {}
    if not by_class:
        return None
    classes = sorted(by_class)
    source = {"type": "files", "folder": data}
    files.class_files(source, classes)
    for name, paths in by_class.items():
        if not is_name(name):
            other = paths[0].name.replace(name, name_of(Path(name)), 1)
            remedy = f"rename it, for instance to {other}: {NAME_RULE}"
            reason = f"gives a class the name {name!r}, which an experiment does not allow"
            raise InputError("data", str(paths[0]), reason, remedy)
    read = [file for paths in by_class.values() for file in paths]
    others = [entry for entry in path.iterdir() if entry not in read]
    # Hidden files come last.
    not_read = [entry.name for entry in sorted(others, key=lambda it: (is_hidden(it), it.name))]
    if len(classes) < 2:
        more = f"; not read are {', '.join(not_read)}" if not_read else ""
        reason = f"holds a FASTA file of one class only, {classes[0]}{more}"
        remedy = f"give each class a file of its own, which ends in {', '.join(files.ENDINGS)}"
        raise InputError("data", data, reason, remedy)
    # Genomes of a species begin at different letters: docs/decisions/genomes.md.
    settings = _settings_of_genomes(source, classes, {"method": "windows", "within": 100})
    return Dataset(
        name_of(path), "virus-cnn", settings, splits_by_repeat=True, not_read=tuple(not_read)
    )


def _choose_class(rows: pd.DataFrame, labels: str) -> str:
    """Return the only column that may be the class, or the user's answer in a terminal.

    Such a column has few values that are no dates, and most rows have one of at least two values
    that are frequent enough to be split.
    """
    columns = {}
    for column in rows:
        counts = rows.loc[rows[column] != "", column].value_counts()
        frequent = counts[counts >= _FEWEST]
        are_few = len(frequent) >= 2 and len(counts) <= _MOST_CLASSES
        are_dates = counts.index.str.fullmatch(r"\d{4}(-[\dX]{2}){1,2}.*").all()
        if are_few and not are_dates and 2 * frequent.sum() > len(rows):
            columns[column] = f"{column} ({len(counts)} values)"
    label = next(iter(columns)) if len(columns) == 1 else None
    if not label and not (columns and sys.stdin.isatty() and sys.stdout.isatty()):
        reason = f"the class may be in {', '.join(columns.values()) or ', '.join(rows.columns)}"
        raise InputError("--labels", labels, reason, "name its column: --label COLUMN")
    while label not in columns:
        label = input(f"Column of the class, {', '.join(columns.values())}: ").strip()
    return label


def _labelled_genomes(path: Path, data: str, labels: str | None, label: str | None) -> Dataset:
    """Return the dataset of one FASTA file whose records have their classes in a table."""
    if labels is None:
        remedy = "name the table with a row for each record, as of NCBI Virus, GISAID or "
        remedy += "Nextstrain: --labels metadata.tsv; or name a folder with a file of each class"
        raise InputError("--data", data, "is one FASTA file, and its records need classes", remedy)
    rows, identifiers = files.match_records(path, Path(expand_path(labels, "--labels")))
    matched = rows.loc[[*filter(None, identifiers.values())]]
    label = label or _choose_class(matched, labels)
    named = files.name_classes(matched, label)
    counts = Counter(filter(None, named))
    classes = sorted(name for name, count in counts.items() if count >= _FEWEST)
    if len(classes) < 2:
        shown = ", ".join(f"{name} {count}" for name, count in counts.most_common(5)) or "none"
        reason = f"fewer than two classes have {_FEWEST} records: {shown}"
        raise InputError("--label", label, reason, "name another column, or give more records")
    without_row = [header.split()[0] for header, row in identifiers.items() if not row]
    without_record = rows.index.difference([*matched.index, ""])
    without_identifier = [f"line {n + 2}" for n, name in enumerate(rows.index) if not name]
    shown = ", ".join(f"{name} {counts[name]}" for name in classes)
    sentences = [
        f"{len(matched)} of {len(identifiers)} records have a row in {labels}, by its column "
        f"{rows.index.name}.",
        f"The class is the column {label}: {shown}.",
    ]
    for names, noun, what in (
        (without_row, "record", "without a row"),
        (without_record, "row", "without a record"),
        (without_identifier, "row", "without an identifier"),
        (matched.index[named == ""], "record", f"without a value of {label}"),
        ([f"{name} ({n})" for name, n in counts.items() if n < _FEWEST],
         "class", f"with fewer than {_FEWEST} records"),
    ):  # fmt: skip
        if len(names):
            amount = with_noun(len(names), noun, "classes" if noun == "class" else None)
            sentences.append(f"Left out: {amount} {what}: {files.join_names(names)}.")
    source = {"type": "labelled", "file": data, "labels": labels, "label": label}
    settings = _settings_of_genomes(source, classes, {"method": "windows", "within": 100})
    sentences += _similar(counts)
    return Dataset(name_of(path), "virus-cnn", settings, True, sentences=tuple(sentences))


def _similar(classes: Iterable[str]) -> list[str]:
    """Return a sentence for classes that differ in case, spaces and `_` or `-` only."""
    written: dict[str, list[str]] = {}
    for name in sorted(classes):
        written.setdefault(re.sub(r"(?<=\w)[\s_-]+", "", name).casefold(), []).append(name)
    return [
        f"{' and '.join(names)} may be one class. If so, write it in one way in the table, and "
        "call again."
        for names in written.values()
        if len(names) > 1
    ]


def _settings_of_genomes(source: dict, classes: list[str], oversample: dict) -> dict:
    return {
        "kind": "genomes",
        "source": source,
        "classes": classes,
        "length": 1000,
        "split": {"test_fraction": 0.3},
        "oversample": oversample,
    }


def _table(path: Path, data: str) -> Dataset | None:
    """Recognise a CSV or TSV file, compressed or not."""
    packed = "|".join(map(re.escape, PACKED_ENDINGS))
    ending = rf"\.(csv|tsv|tab)({packed})?"
    if not path.is_file() or not re.search(rf"{ending}$", path.name, re.IGNORECASE):
        return None
    settings = {"kind": "tabular", "source": {"type": "csv", "path": data}}
    refused = dict.fromkeys(("missing", "constant_features"), "refuse")
    return Dataset(name_of(path), "mlp", settings | refused | {"split": {"test_fraction": 0.3}})


def _public_pictures(path: Path, data: str) -> Dataset | None:
    """Recognise the files of MNIST, and the binary files of CIFAR-10 or their archive."""
    if path.is_dir() and any(path.glob("train-images[-.]idx3-ubyte*")):
        workload, source = "mnist-mlp", {"type": "idx", "folder": data}
    elif path.name == "cifar-10-binary.tar.gz" or (path / "data_batch_1.bin").is_file():
        workload, source = "cifar-cnn", {"type": "cifar", "path": data}
    else:
        return None
    return Dataset(name_of(path), workload, {"kind": "images", "source": source, "split": {}})


def _pictures(path: Path, data: str) -> Dataset | None:
    """Recognise a folder of folders of PNG and JPEG files."""
    # The modules are imported here, because they import Pillow.
    from escala.data.images.pictures import ENDINGS, count_pictures

    if not path.is_dir() or not any(file.suffix.lower() in ENDINGS for file in path.glob("**/*")):
        return None
    count_pictures(path)
    source = {"type": "folders", "folder": data}
    settings = {"kind": "images", "source": source, "colour": "rgb", "size": [64, 64]}
    return Dataset(name_of(path), "cifar-cnn", settings | {"split": {"test_fraction": 0.2}})


def _arrays(path: Path, data: str) -> Dataset | None:
    """Recognise a `.npz` file, or a folder of `.npy` files."""
    # The module is imported here, because it imports NumPy.
    from escala.data.arrays.headers import settings_of

    settings = settings_of(path, data)
    return settings and Dataset(name_of(path), None, {"kind": "arrays", **settings, "split": {}})


def name_of(path: Path) -> str:
    """Return the name of a path as one that an experiment allows."""
    stem = path.resolve().name.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:64] or "data"


def draft(
    name: str,
    dataset: Dataset,
    *,
    workload: str | None = None,
    strategies: Sequence[str] = DEFAULTS["strategies"],
    layouts: Sequence[str] = DEFAULTS["layouts"],
    epochs: int = DEFAULTS["epochs"],
    repeats: int = DEFAULTS["repeats"],
) -> Draft:
    """Draft an experiment that compares layouts with one process of the same engine.

    One process is measured on one core. One process with threads is also measured, on as many cores
    as the largest layout of one node has processes.

    Parameters
    ----------
    name : the name of the experiment.
    dataset : see `recognise`.
    workload : the name of a workload, or a folder with a `workload.yaml`. By default: a workload
        for the data, and every fitted workload for such data.
    strategies, layouts : to compare with one process. A strategy of one rank has the layout `1x1`.
    epochs : the epochs of a workload that is trained by steps.
    repeats : timing runs of each configuration.

    Raises
    ------
    InputError : there is no such workload, or its declaration is wrong; or a layout is not written
        as `NODESxPROCS`.
    """
    # In the other datasets, one split serves all repeats.
    seeds = list(range(1, repeats + 1)) if dataset.splits_by_repeat else [4]
    described = dataset.settings | {"split": dataset.settings["split"] | {"seeds": seeds}}
    try:
        parsed = [Layout.parse(layout) for layout in layouts]
    except ValueError as error:
        raise InputError("--layouts", layouts, str(error), "write it as 1x2") from None
    known = [name for name in strategies if name in STRATEGIES]
    alone = list(dict.fromkeys(one_process(name)[0] for name in known)) or [ONE_PROCESS[0]]
    configurations = [{"strategy": name, "layouts": ["1x1"]} for name in alone]
    for strategy in strategies:
        one_rank = strategy in known and STRATEGIES[strategy].layouts.one_rank
        if strategy not in alone:
            wanted = ["1x1"] if one_rank else list(layouts)
            entry = {"strategy": strategy, "layouts": wanted, "variants": [PROCESSES]}
            configurations.append(entry)
    is_simulated = dataset.settings.get("source", {}).get("type") == SIMULATED
    subject = "simulated genomes" if is_simulated else dataset.name
    settings = compare_settings(
        name,
        f"Does parallel training on {subject} pay?",
        repeats,
        alone,
        max((layout.processes for layout in parsed if layout.nodes == 1), default=1),
        datasets={dataset.name: described},
        workloads=_workloads(workload, dataset, epochs, alone),
        configurations=configurations,
    )
    probes = {"timeline": {"enabled": False}}
    unread = [f"Not read: {', '.join(dataset.not_read)}"] if dataset.not_read else []
    return Draft(settings | probes, _NOTES, [*dataset.sentences, *unread])


def examine(drafted: Draft) -> Draft:
    """Return a draft whose table or genomes were read as a run would read them.

    Columns of a table that no model can use are left out, and rows with a missing value, too. The
    sentences of the draft say so. Then the first split is made in a temporary folder. Larger data
    than 256 MB are not read.

    Raises
    ------
    InputError : a run would refuse the data.
    """
    [(name, dataset)] = drafted.settings["datasets"].items()
    kind = KINDS[dataset["kind"]]
    if dataset["kind"] not in ("genomes", "tabular") or dataset["source"]["type"] == SIMULATED:
        return drafted
    inputs = derive("inputs", dataset)
    if sum(file.stat().st_size for file in inputs) > _READ:
        sentences = ["The data are large, and were not read: the first step of the run reads them."]
        return replace(drafted, sentences=drafted.sentences + sentences)
    if dataset["kind"] == "tabular":
        dataset, sentences = _examine_table(inputs[0], dataset)
        settings = drafted.settings | {"datasets": {name: dataset}}
        drafted = replace(drafted, settings=settings, sentences=drafted.sentences + sentences)
    settings = Experiment(drafted.settings, "draft").datasets[name]
    # Steps print what they made, which belongs to a run.
    with TemporaryDirectory() as temporary, redirect_stdout(StringIO()):
        folder = Path(temporary)
        try:
            if kind.has("source"):
                (folder / "source").mkdir()
                acquisition = derive("acquisition", settings)
                kind.load("source").acquire(acquisition, inputs, folder / "source")
            else:
                source, classes = settings["source"], settings["classes"]
                sequences, lock = folder / "sequences", folder / "lock.tsv"
                kind.load(ACQUIRE).acquire(source, classes, sequences, lock)
                length, same = settings["length"], settings["deduplicate"]
                kept = derive("letters_kept", settings)
                encode = kind.load("arrays").encode_classes
                counts = encode(sequences, classes, length, same, folder, kept)
                if repeated := int((counts["records"] - counts["kept"]).sum()):
                    what = f"{with_noun(repeated, 'record')} with the sequence of another one"
                    sentence = f"Left out: {what} (deduplicate: {same})."
                    drafted = replace(drafted, sentences=[*drafted.sentences, sentence])
            (folder / "split").mkdir()
            kind.load("arrays").prepare(
                name, derive("preparation", settings), settings["split"]["seeds"][0],
                derive("preparation_inputs", settings, folder), folder / "split",
            )  # fmt: skip
        except InputError as error:
            # A file of the temporary folder has the name of its class.
            where = Path(error.where).stem if temporary in str(error.where) else error.where
            raise InputError(where, error.value, error.reason, error.remedy) from error
    return drafted


def _examine_table(path: Path, dataset: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a table without the columns and rows that a run would refuse.

    Also return sentences about them.
    """
    import pandas as pd

    from escala.data.tabular import table

    source = dataset["source"]
    drop = source.get("drop", [])
    columns = table.columns(path, "auto", source.get("label"), drop)
    rows = read_table(path, columns.header)
    rows = rows.mask(rows.apply(lambda column: column.str.lower().isin(table.MISSING)))
    labels = rows.iloc[:, columns.class_place].dropna()
    features = rows.iloc[:, list(columns.places)].set_axis(columns.features, axis=1)
    numbers = features.apply(pd.to_numeric, errors="coerce")
    values, known = features.nunique(), features.notna().sum()
    is_text = 2 * numbers.notna().sum() < known
    are_numbers = numbers.apply(lambda column: table.numbers_rows(column.to_numpy()))
    left_out: dict[str, str] = {}
    for reason, is_so in (
        ("has no value", values < min(1, len(rows))),
        ("has one value", values < min(2, len(rows))),
        ("differs in each row", is_text & (values == known)),
        ("numbers the rows", are_numbers),
    ):
        left_out = dict.fromkeys(features.columns[is_so], reason) | left_out
    texts = [name for name in features.columns[is_text] if name not in left_out]
    if texts:
        reason = f"text, and a feature is a number; the class is {columns.label}"
        remedy = f"leave it out: --drop {' '.join(map(shlex.quote, texts))}; or write numbers for "
        remedy += "texts; or name another column as the class: --label COLUMN"
        raise InputError(path, ", ".join(texts), reason, remedy)
    counts = labels.map(table.class_name).value_counts()
    similar = _similar(counts.index)
    if similar and counts.min() < _FEWEST:
        reason = f"{with_noun(counts.min(), 'row')} of {counts.idxmin()} cannot be split"
        raise InputError(path, columns.label, reason, similar[0].rstrip("."))
    sentences = [f"Left out: {name}, which {reason}." for name, reason in left_out.items()]
    unlabelled = len(rows) - len(labels)
    incomplete = features.drop(columns=[*left_out]).isna().any(axis=1)
    incomplete = int((incomplete | rows.iloc[:, columns.class_place].isna()).sum())
    settings = dict(dataset)
    if left_out:
        settings["source"] = source | {"drop": [*drop, *left_out]}
    if incomplete:
        # A missing class cannot be filled.
        drop_rows = unlabelled or 2 * incomplete <= len(rows)
        settings["missing"] = "drop" if drop_rows else "mean"
        without = f", {unlabelled} of them a class" if unlabelled else ""
        sentences.append(
            f"{incomplete} of {with_noun(len(rows), 'row')} lack a value{without}: these rows are "
            + ("left out (missing: drop)." if drop_rows else "completed (missing: mean).")
        )
    return settings, [*sentences, *similar]


def _workloads(
    workload: str | None, dataset: Dataset, epochs: int, alone: Sequence[str]
) -> dict[str, dict]:
    """Return the workloads of a draft with their settings.

    `alone` are the strategies of one process. A fit runs only with the strategy of the first
    engine.
    """
    if workload is None:
        kind = dataset.settings["kind"]
        if dataset.workload is None:
            reason = f"no workload of Escala reads data of the kind {kind}"
            remedy = (
                "name the folder of yours: --workload FOLDER "
                "(docs/how-to/bring-your-own-workload.md), or your own script: --command TEXT"
            )
            raise InputError("workload", None, reason, remedy)
        engines = {STRATEGIES[name].engine.partition(".")[0] for name in alone}
        usual = dataset.workload
        if not engines <= {*WORKLOADS[usual].engines}:
            usual = _OTHERWISE.get(usual, usual)
        fits = [
            name
            for name, known in WORKLOADS.items()
            if known.is_fitted and known.data_kind == kind and ONE_PROCESS[0] in alone
        ]
        return {usual: _steps(usual, epochs)} | {name: {} for name in fits}
    if workload in WORKLOADS:
        by_steps = WORKLOADS[workload].takes_steps
        return {workload: _steps(workload, epochs) if by_steps else {}}
    file = Path(expand_path(workload, "workload")) / plugins.DECLARATIONS[plugins.WORKLOADS]
    if not file.is_file():
        reason = f"is neither a workload nor a folder with a {file.name}"
        remedy = f"use one of {', '.join(WORKLOADS)}, or name your folder"
        raise InputError("workload", workload, reason, remedy)
    name, path = name_of(file.parent), {"path": workload}
    try:
        by_steps = read_declaration(file).takes_steps
    except (KeyError, TypeError, yaml.YAMLError):
        by_steps = False  # The check of the experiment reports the error.
    return {name: path | (_steps(name, epochs) if by_steps else {})}


def _steps(workload: str, epochs: int) -> dict[str, Any]:
    """Return the settings of a workload that is trained by steps."""
    return {
        "epochs": epochs,
        "batch": {"rows": _ROWS, "per": "global"},
        "learning_rate": {"value": _RATES.get(workload, 0.001), "reference_batch": _ROWS},
        "seed": 0,
    }
