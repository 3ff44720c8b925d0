"""Measure how soon the workflow notices the end of a SLURM job, on the lab.

    python scripts/lab.py up
    python -m benchmarks.job_end --repeats 3

A job sleeps for some seconds and writes a file. A line gives seconds: from the submission to the
end of the job, by SLURM; from the submission to the end of Snakemake; and between the two ends.
With `--plugin` the plugin's own executor is measured.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from escala.runtime import slurm

ROOT = Path(__file__).resolve().parent.parent
SNAKEFILE = """
import sys

sys.path.insert(0, {root!r})
from escala.runtime import slurm_executor

if {ours} and workflow.is_main_process:
    slurm_executor.register()


rule job:
    output:
        "done",
    shell:
        "sleep {seconds}; touch {{output}}"
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=25)
    parser.add_argument("--plugin", action="store_true")
    parser.add_argument("--profile", default="lab", choices=["lab", "slurm"])
    arguments = parser.parse_args()
    row = "{:>12}{:>12}{:>12}".format
    print(row("job", "workflow", "noticed"))
    for _ in range(arguments.repeats):
        submitted, ended, over = measured(
            arguments.seconds, not arguments.plugin, arguments.profile
        )
        print(row(*(f"{s:.0f}" for s in (ended - submitted, over - submitted, over - ended))))


def measured(seconds: int, ours: bool, profile: str) -> tuple[float, float, float]:
    """Return when a job was submitted, when it ended, and when Snakemake ended."""
    with tempfile.TemporaryDirectory() as folder:
        text = SNAKEFILE.format(root=str(ROOT), ours=ours, seconds=seconds)
        (Path(folder) / "Snakefile").write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", "--profile", str(ROOT / "profiles" / profile)],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        over = time.time()
    said = done.stdout + done.stderr
    if done.returncode:
        raise SystemExit(said)
    [job] = re.findall(r"SLURM jobid (\d+)", said)
    shown = slurm.call(["scontrol", "show", "job", job], 60).stdout
    submitted, ended = (
        datetime.fromisoformat(re.search(rf"{key}=(\S+)", shown)[1]).timestamp()
        for key in ("SubmitTime", "EndTime")
    )
    return submitted, ended, over


if __name__ == "__main__":
    main()
