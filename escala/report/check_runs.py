"""List the runs that did not end ok, and say where the results are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from escala.core.environment import call
from escala.core.readable import with_noun
from escala.record.disturbance import earlier, is_disturbed
from escala.record.schema import read_result


def check_runs(paths: Sequence[Path], page: bool, planned: int | None = None) -> bool:
    """Print the runs that did not end ok, and what to do; return whether all did.

    Parameters
    ----------
    paths : their `run.json`.
    page : whether the call made the page of these runs.
    planned : how many runs there would be, if all were measured.
    """
    if planned and planned > len(paths):
        print(f"{len(paths)} of {planned} runs are measured; the others are left out.")
    runs = {path: read_result(path) for path in paths}
    failed = {path: run for path, run in runs.items() if run["status"] != "ok"}
    folders = sorted({f"results/{run['experiment']}" for run in runs.values()})
    for path, run in failed.items():
        print(f"{path}: {run['status']}: {run['reason']}")
    if failed:
        retry = "; ".join(call(f"retry {folder}") for folder in folders)
        print(
            f"{len(failed)} of {len(runs)} runs did not end ok. To repeat only these, and the runs "
            f"of the same repeats that they are compared with: {retry}; then the same command "
            "again."
        )
        _say_results(paths, folders, page)
        return False
    print(f"All {len(runs)} runs ended ok." if len(runs) > 1 else "The only run ended ok.")
    timed = [run for run in runs.values() if run["instrument"] is None]
    again, stay = (sum(map(bool, map(of, timed))) for of in (earlier, is_disturbed))
    if again or stay:
        again = with_noun(again, "run")
        print(
            f"Measured again because other work disturbed their repeat: {again}; still disturbed: "
            f"{stay}."
        )
    _say_results(paths, folders, page)
    return True


def _say_results(paths: Sequence[Path], folders: list[str], page: bool) -> None:
    """Print where the runs are, or the answer and the report if the call made the page."""
    for document in (Path(folder, "study.html") for folder in folders):
        if document.exists():
            print(f"Scaling study to hand in: {document}, and study.pdf, .md and .tex next to it.")
    if not page:
        where = paths[0] if len(paths) == 1 else ", ".join(f"{folder}/runs" for folder in folders)
        print(f"Results: {where}. A call without a target makes the page of all runs.")
        return
    for folder in folders:
        if Path(folder, "index.html").exists():
            print(
                f"Answer: {folder}/index.html, to open in a browser, and as text "
                f"{folder}/summary.md; tables/ and figures/ are alongside them."
            )
        if Path(folder, "summary.md").exists():
            print(
                f"Report, every figure and table in one file: {call('report')}, and -e FILE as in "
                "this call. With --report-after-run it is written next."
            )
