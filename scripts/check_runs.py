"""List the runs that did not end ok, and fail if there are any."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.core.environment import call
from escala.core.readable import counted
from escala.measure import table
from escala.record.disturbance import earlier, is_disturbed
from escala.record.schema import read_result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    named = parser.add_mutually_exclusive_group(required=True)
    named.add_argument("--runs", nargs="+", type=Path, metavar="run.json")
    named.add_argument("--table", type=Path, metavar="FILE", help="the table of measurements")
    parser.add_argument("--page", action="store_true", help="the call made the page of these runs")
    text = "how many runs there would be, if all were measured"
    parser.add_argument("--all", type=int, metavar="N", help=text)
    arguments = parser.parse_args()
    paths = arguments.runs or [Path(row["file"]) for row in table.read(arguments.table)]
    if arguments.all and arguments.all > len(paths):
        print(f"{len(paths)} of {arguments.all} runs are measured; the others are left out.")
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
        _say_results(paths, folders, arguments.page)
        return 1
    print(f"All {len(runs)} runs ended ok." if len(runs) > 1 else "The only run ended ok.")
    timed = [run for run in runs.values() if run["instrument"] is None]
    again, stay = (sum(map(bool, map(each, timed))) for each in (earlier, is_disturbed))
    if again or stay:
        again = counted(again, "run")
        print(
            f"Measured again because other work disturbed their repeat: {again}; still disturbed: "
            f"{stay}."
        )
    _say_results(paths, folders, arguments.page)
    return 0


def _say_results(paths: list[Path], folders: list[str], page: bool) -> None:
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


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
