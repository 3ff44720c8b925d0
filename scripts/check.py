"""Print what this machine can run: each check with yes or no, and the remedy for a no.
Inside a job of SLURM, further checks tell what the site gives.

A no is not an error: the exit code is 0.
"""

from __future__ import annotations

from escala import cli
from escala.check import job, machine
from escala.core.arguments import Parser, raw_parser
from escala.lab import cluster

machine.check("lab", "docs/how-to/lab.md says what it needs", before="browser")(cluster.abilities)

EXAMPLES = """\
examples:
  escala check                       what this machine can run, with a remedy for each no
  srun --ntasks=1 escala check       a node of a cluster
"""


def main() -> None:
    parser().parse_args()
    checks = [*machine.CHECKS, *(job.CHECKS if job.in_a_job() else [])]
    for answer in machine.answers(checks):
        print(answer, flush=True)


def parser() -> Parser:
    return raw_parser(__doc__, prog="escala check", epilog=EXAMPLES)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
