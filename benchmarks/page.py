"""Measure the size of the page of an experiment with many runs, and the time to write it.

The runs are made up: repeats of configurations whose times vary by a tenth. Tables are built from
their files, figures drawn from the tables, and the page written, as `escala.report.steps` does. All
stand in a temporary folder and are removed. Run it as `python -m benchmarks.page` in the project.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from escala.report import tables
from escala.report.figures import DECLARED, FIGURES, SOME_FIGURES, common, figure
from escala.report.page import page
from tests.unit.fixtures_runs import FakeExperiment

#: Strategies and layouts, and the seconds of an epoch of one process on one core.
CONFIGURATIONS = (
    ("single", "1x1", 1.0),
    ("horovod-mpi", "1x2", 0.6),
    ("horovod-gloo", "1x2", 0.65),
    ("mirrored", "1x2", 0.8),
    ("horovod-mpi", "2x2", 0.4),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="*", default=[100, 2000])
    parser.add_argument("--repeats", type=int, default=10, help="of each configuration")
    parser.add_argument("--keep", type=Path, help="folder for the pages, by their number of runs")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    arguments = parser.parse_args()
    for runs in arguments.runs:
        with tempfile.TemporaryDirectory() as temporary:
            written = _page(Path(temporary), runs, arguments.repeats, arguments.profile)
            if arguments.keep:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                (arguments.keep / f"{runs}.html").write_bytes(written.read_bytes())


def _page(folder: Path, runs: int, repeats: int, profile: bool) -> Path:
    """Make up runs, write their page, and print what each part took."""
    experiment = _experiment(folder, runs, repeats)
    frames = _timed(f"{runs} runs: tables", lambda: _tables(experiment, folder / "tables"))
    has = ("classes", "comparisons")
    names = [*FIGURES, *(name for name in SOME_FIGURES if DECLARED[name].needs in has)]
    drawn = _timed(
        f"{runs} runs: {len(names)} figures", lambda: _draw(frames, folder / "figures", names)
    )
    output = folder / "index.html"
    profiler = cProfile.Profile() if profile else nullcontext()
    with profiler:
        text = _timed(f"{runs} runs: page", lambda: page(frames, "demo", f"{runs} runs", drawn))
    if profile:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(50)
    output.write_text(text, encoding="utf-8")
    print(f"{runs} runs: page of {output.stat().st_size / 1e6:.2f} MB")
    return output


def _experiment(folder: Path, runs: int, repeats: int) -> FakeExperiment:
    """Return an experiment of as many variants as give so many runs."""
    experiment = FakeExperiment(folder).add_dataset()
    variants = max(1, round(runs / repeats / len(CONFIGURATIONS)))
    for variant in range(variants):
        for strategy, layout, seconds in CONFIGURATIONS:
            experiment.add(
                strategy, layout, seconds * (1 + variant / variants), repeats,
                variant=f"variant-{variant}",
            )  # fmt: skip
    return experiment


def _tables(experiment: FakeExperiment, folder: Path) -> dict:
    """Build the tables, write them with their checks, and read them."""
    frames = tables.tables(experiment.runs, experiment.dataset_files)
    tables.write(frames, folder)
    return tables.read(folder)


def _draw(frames: dict, folder: Path, names: list[str]) -> dict[str, str]:
    folder.mkdir()
    paths = {name: folder / f"{name}.svg" for name in names}
    with common.style():
        for name, path in paths.items():
            common.save(figure(name).draw(frames), path)
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items()}


def _timed(what: str, work: Callable):
    began = time.perf_counter()
    found = work()
    print(f"{what}: {time.perf_counter() - began:.2f} s", flush=True)
    return found


if __name__ == "__main__":
    main()
