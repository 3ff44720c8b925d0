"""Compute how many repeats an experiment needs, from the runs of its pilot, by Stein's rule."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.core.files import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", required=True, nargs="+", type=Path, metavar="run.json")
    parser.add_argument(
        "--references",
        required=True,
        type=cli.json_or_file,
        metavar="JSON",
        help="the references of configurations, the main one first",
    )
    parser.add_argument(
        "--asked",
        required=True,
        type=cli.json_or_file,
        metavar="JSON",
        help="half_width, repeats and at_most, as in the experiment",
    )
    parser.add_argument("--output", required=True, type=Path, help="the pilot.json to write")
    arguments = parser.parse_args()

    def make() -> None:
        from escala.report import pilot
        from escala.report.tables import Evidence

        evidence = Evidence(arguments.runs, references=arguments.references)
        write_json(arguments.output, pilot.plan(evidence, arguments.asked))

    sessions = [
        each for run in arguments.runs for each in sorted(run.parent.glob("sessions/*.json"))
    ]
    cli.serve_or_make(
        "pilot",
        code="scripts.pilot",
        inputs={str(path): path for path in [*arguments.runs, *sessions]},
        parameters={
            "runs": list(map(str, arguments.runs)),
            "references": arguments.references,
            "asked": arguments.asked,
        },
        outputs={arguments.output.name: arguments.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
