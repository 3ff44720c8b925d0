"""Make a calibration from the runs that calibrate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from escala import cli
from escala.cache import code
from escala.core.files import write_json


def main() -> None:
    # Files of runs and gradients by what they give, and the calibration.json to write.
    given = cli.options(__doc__, sources=cli.json_or_file, output=Path)

    def make() -> None:
        from escala.analysis.cost_model.calibration import parse
        from escala.analysis.cost_model.document import document

        content, left_out = document(given.sources)
        parse(content, given.output)
        write_json(given.output, content)
        calibrated = [*content["works"], *content.get("programs", ())]
        print("\n".join([*left_out, f"{given.output}: {', '.join(calibrated)}"]))

    cli.serve_or_make(
        "calibrate",
        code=code.project(),
        inputs={str(path): path for path in _read(given.sources)},
        parameters={"sources": given.sources},
        outputs={given.output.name: given.output},
        make=make,
    )


def _read(sources: dict) -> Iterator[Path]:
    """Yield the files that a calibration is made of, including those in the folders of runs."""
    runs = set(sources["collectives"])
    for work in sources["works"].values():
        yield Path(work["gradients"])
        runs |= {*work["steps"], work["clocks"]}
    for program in sources.get("programs", {}).values():
        runs |= {*program["steps"], *(file for group in program["sums"] for file in group)}
    for run in map(Path, sorted(runs)):
        yield run
        for pattern in ("ranks/rank*.steps.csv", "ranks/rank*.clocks.csv"):
            yield from sorted(run.parent.glob(pattern))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
