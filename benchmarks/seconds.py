"""Divide the wall time of a workflow among its jobs.

    python benchmarks/seconds.py [-- COMMAND …]

Runs the command, by default the README's call of Snakemake, and prints two tables. In the first,
the whole wall time is divided among rules: a moment in which several jobs run is divided equally
between them. The second divides the jobs of training runs (medians). Jobs that were done before, or
are served from the store, take no time: delete `results/` and set `ESCALA_STORE=off` to measure it
all.
"""

from __future__ import annotations

import argparse
import base64
import shlex
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from escala import cli
from escala.core.files import read_json

COMMAND = shlex.split("snakemake --cores 2 --report results/demo/report.html --report-after-run")
METADATA = Path(".snakemake/metadata")
TRAINING = ("train", "instrumented")
#: Columns of the second table, in seconds.
WORK = ("training", "validation and evaluation")
PARTS = ("around the ranks", "startup", "build", "first steps", "other")
COLUMNS = (*WORK, *PARTS, "overhead")


@dataclass(frozen=True)
class Job:
    """A job of the workflow, with its moments in seconds since 1970.

    Attributes
    ----------
    output : one of the files it made.
    """

    rule: str
    start: float
    end: float
    output: Path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="*", default=COMMAND, metavar="COMMAND")
    command = parser.parse_args().command
    start = time.time()
    code = subprocess.run(command, stdout=sys.stderr).returncode
    end = time.time()
    jobs = read_jobs(METADATA, start)
    _print_table(("where", "jobs", "seconds"), _by_rule(jobs, start, end))
    runs: dict[str, list[dict]] = defaultdict(list)
    for job in jobs:
        if job.rule in TRAINING:
            configuration, parts = parts_of_run(job)
            runs[configuration].append(parts)
    _print_table(("configuration", "jobs", *COLUMNS), map(_medians, runs.items()))
    return code


def read_jobs(metadata: Path, since: float) -> list[Job]:
    """Return the jobs that Snakemake ended after a moment, in the order of their starts.

    Snakemake keeps a record of every file it made, named by the file's path in base64.
    """
    jobs = {}
    for path in metadata.rglob("*"):
        if not path.is_file():
            continue
        record = read_json(path)
        if record["endtime"] and record["starttime"] >= since:
            name = "".join(path.relative_to(metadata).parts).replace("@", "")
            output = Path(base64.b64decode(name).decode())
            # The files of a job have a record each; its log is its own.
            jobs[tuple(record["log"])] = Job(
                record["rule"], record["starttime"], record["endtime"], output
            )
    return sorted(jobs.values(), key=lambda job: job.start)


def divided(jobs: Iterable[Job], start: float, end: float) -> dict[str, float]:
    """Divide the time from `start` to `end` among rules, each moment equally among its jobs.

    Returns
    -------
    Seconds by rule. Moments without a job stand under `before the first job`, `between jobs` and
    `after the last job`; all values add up to `end - start`.
    """
    jobs = list(jobs)
    first = min((job.start for job in jobs), default=end)
    last = max((job.end for job in jobs), default=end)
    moments = sorted({start, end, *(job.start for job in jobs), *(job.end for job in jobs)})
    seconds: dict[str, float] = defaultdict(float)
    for begin, stop in pairwise(moments):
        running = [job.rule for job in jobs if job.start <= begin and stop <= job.end]
        idle = (
            "before the first job" if stop <= first
            else "after the last job" if begin >= last
            else "between jobs"
        )  # fmt: skip
        for name in running or [idle]:
            seconds[name] += (stop - begin) / max(1, len(running))
    return dict(seconds)


def _by_rule(jobs: list[Job], start: float, end: float) -> Iterable[tuple]:
    counts: dict[str, int] = defaultdict(int)
    for job in jobs:
        counts[job.rule] += 1
    fractions = divided(jobs, start, end)
    for name, seconds in sorted(fractions.items(), key=lambda item: -item[1]):
        yield name, counts.get(name, ""), f"{seconds:.1f}"
    yield "all", len(jobs), f"{end - start:.1f}"


def parts_of_run(job: Job) -> tuple[str, dict[str, float]]:
    """Return the configuration of a training run, and the seconds of its job by `COLUMNS`.

    The overhead is all that is neither training nor validation nor evaluation.
    """
    folder = job.output if job.output.is_dir() else job.output.parent
    run = read_json(folder / "run.json")
    # A fit has no first step; nothing is known of a run that failed.
    seconds = {name: value or 0.0 for name, value in (run["seconds"] or {}).items()}
    whole, spent = job.end - job.start, lambda *names: sum(seconds.get(n, 0.0) for n in names)
    validation = sum(epoch["validation_seconds"] or 0 for epoch in run["epochs"])
    parts = {
        "training": spent("train"),
        "validation and evaluation": validation + spent("evaluation"),
        "startup": spent("startup"),
        "build": spent("build"),
        "first steps": spent("first_step", "first_prediction"),
        "other": spent("loading", "broadcast", "checkpoint", "averaging", "save"),
    }
    overhead = whole - sum(parts[name] for name in WORK)
    rest = {"around the ranks": whole - sum(parts.values()), "overhead": overhead}
    configuration = " ".join(run[k] for k in ("workload", "strategy", "layout", "variant"))
    return configuration, parts | rest


def _medians(named: tuple[str, list[dict]]) -> tuple:
    configuration, runs = named
    medians = (statistics.median(run[column] for run in runs) for column in COLUMNS)
    return configuration, len(runs), *(f"{median:.2f}" for median in medians)


def _print_table(header: Iterable[str], rows: Iterable[tuple]) -> None:
    header = list(header)
    print(f"\n| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
