"""Make the files of a dataset of any kind. A function serves the rule with its name."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

from escala import cli
from escala.core.errors import InputError
from escala.data import DEFAULT_KIND, KINDS
from escala.data.base import DESCRIPTION

#: Rows are printed for at most this number of classes.
_MOST = 50


def _code(settings: SimpleNamespace):
    return KINDS[settings.kind].code()


@cli.step(_code)
def source(output: cli.Files, settings: SimpleNamespace, files: list[Path]) -> None:
    """Acquire the data of all splits of a dataset, with a lock file of digests."""
    from escala.core.files import atomic
    from escala.data.splits import write_lock

    with atomic(output["source"]) as temporary:
        temporary.mkdir()
        KINDS[settings.kind].load("source").acquire(settings.acquisition, files, temporary)
        write_lock(temporary)


@cli.step(
    _code,
    # A kind without files makes no arrays, so the store has nothing to keep.
    outputs=lambda settings, output: {
        name: output["description"].with_name(name)
        for name in (*KINDS[settings.kind].files, DESCRIPTION)
        if KINDS[settings.kind].files
    },
    optional=lambda settings: KINDS[settings.kind].files,
)
def arrays(output: cli.Files, settings: SimpleNamespace, **inputs: Path) -> None:
    """Split a dataset and write the arrays of its sides."""
    kind, folder = KINDS[settings.kind], output["description"].parent
    began = perf_counter()
    prepare = kind.load("arrays").prepare
    description = prepare(settings.name, settings.preparation, settings.seed, inputs, folder)
    if description is None:
        reason, remedy = "prepare returned None", "return what write_split returns"
        raise InputError(kind.folder / "arrays.py", None, reason, remedy)
    # The kind in the description selects the reader of the arrays.
    if (named := description.get("kind", DEFAULT_KIND)) != kind.name:
        reason = f"the dataset is of the kind {kind.name}, and its arrays name another kind"
        remedy = "use the kind's name in its module arrays"
        raise InputError(folder / DESCRIPTION, named, reason, remedy)
    counts = description.get("counts", {})
    rows_out = sum(filter(None, description["rows"].values()))
    # Without balancing, all rows go in and out.
    rows_in = sum(rows.get("kept", 0) for rows in counts.values()) or rows_out
    outputs = [folder / name for name in (*kind.files, DESCRIPTION)]
    written = [inner for path in outputs for inner in (path, *path.rglob("*")) if inner.is_file()]
    cli.print_stage("arrays", began, rows_in, rows_out, written)
    for name, stages in list(counts.items())[:_MOST]:
        print(name, *(f"{stage_name} {rows}" for stage_name, rows in stages.items()))
    if len(counts) > _MOST:
        print(f"… and {len(counts) - _MOST} more classes, in {DESCRIPTION}")
    for name in description.get("not_separable", ()):
        print(f"{name} has one group: not separable, all its rows are trained on")


@cli.step(
    _code,
    inputs=lambda settings, dataset: {
        name: path
        for name in (DESCRIPTION, *KINDS[settings.kind].files)
        if (path := dataset.with_name(name)).exists()
    },
)
def familiarity(output: cli.Files, settings: SimpleNamespace, dataset: Path) -> None:
    """Learn the content of the training rows of a split, to flag unfamiliar items."""
    learn = KINDS[settings.kind].load("familiarity").learn
    learned = learn(dataset.parent, output["familiarity"])
    print(f"{output['familiarity']}: {len(learned.held_out)} held-out rows")
