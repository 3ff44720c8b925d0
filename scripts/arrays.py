"""Split a dataset and write the arrays of its sides."""

from __future__ import annotations

from pathlib import Path

from escala import cli
from escala.core.errors import InputError
from escala.data import DEFAULT_KIND, KINDS

DESCRIPTION = "dataset.json"
#: Classes whose rows are printed.
_MOST = 50


def main() -> None:
    given = cli.options(
        __doc__,
        kind=str,
        name=str,
        preparation=cli.json_or_file,
        seed=int,
        inputs=cli.json_or_file,  # Files to read, by name.
        output=Path,
    )
    kind, inputs = KINDS[given.kind], {name: Path(path) for name, path in given.inputs.items()}
    outputs = {name: given.output / name for name in (*kind.files, DESCRIPTION)}
    settings = {"name": given.name, "preparation": given.preparation, "seed": given.seed}

    def make() -> None:
        with cli.stage("arrays") as stage:
            prepare = kind.load("arrays").prepare
            description = prepare(given.name, given.preparation, given.seed, inputs, given.output)
            if description is None:
                reason, remedy = "prepare returned None", "return what write_split returns"
                raise InputError(kind.folder / "arrays.py", None, reason, remedy)
            # Their reader is selected by this kind.
            if (named := description.get("kind", DEFAULT_KIND)) != kind.name:
                reason = f"the dataset is of the kind {kind.name}, and its arrays name another"
                remedy = "use the kind's name in its module arrays"
                raise InputError(given.output / DESCRIPTION, named, reason, remedy)
            counts = description.get("counts", {})
            stage.rows_out = sum(filter(None, description["rows"].values()))
            # Without balancing these are all rows.
            stage.rows_in = sum(each.get("kept", 0) for each in counts.values()) or stage.rows_out
            made = [inner for path in outputs.values() for inner in (path, *path.rglob("*"))]
            stage.files = [path for path in made if path.is_file()]
        for name, stages in list(counts.items())[:_MOST]:
            print(name, *(f"{stage_name} {rows}" for stage_name, rows in stages.items()))
        if len(counts) > _MOST:
            print(f"… and {len(counts) - _MOST} more classes, in {DESCRIPTION}")
        for name in description.get("not_separable", ()):
            print(f"{name} has one group: not separable, all its rows are trained on")

    if not kind.files:
        # Files stay where they are: nothing is worth a place in the store.
        make()
        return
    cli.serve_or_make(
        "arrays",
        code=kind.code(),
        inputs=inputs,
        parameters={"kind": kind.name} | settings,
        outputs=outputs,
        optional=kind.files,
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
