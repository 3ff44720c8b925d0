"""Print what this machine can run: each check with yes or no, and the remedy for a no.

Inside a job of SLURM, further checks tell what the site gives: srun --ntasks=1 escala check.

A no is not an error: the exit code is 0.
"""

from __future__ import annotations

from escala import check, cli
from escala.check import job
from escala.core.arguments import Parser
from escala.lab import cluster

check.check("lab", "docs/how-to/lab.md says what it needs", before="browser")(cluster.abilities)


def main() -> None:
    Parser(prog="escala check", description=__doc__).parse_args()
    checks = [*check.CHECKS, *(job.CHECKS if job.in_a_job() else [])]
    for answer in check.answers(checks):
        print(answer, flush=True)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
