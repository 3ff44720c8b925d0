"""Compute how many repeats an experiment needs, from the runs of its pilot."""

from __future__ import annotations

from pathlib import Path

from escala import cli
from escala.cache import code
from escala.core.files import write_json


def main() -> None:
    given = cli.options(
        __doc__,
        runs=[Path],
        references=cli.json_or_file,  # Of configurations, the main one first.
        asked=cli.json_or_file,  # half_width, repeats and at_most, as in the experiment.
        output=Path,
    )

    def make() -> None:
        from escala.report import pilot
        from escala.report.tables import Evidence

        evidence = Evidence(given.runs, references=given.references)
        write_json(given.output, pilot.plan(evidence, given.asked))

    sessions = [each for run in given.runs for each in sorted(run.parent.glob("sessions/*.json"))]
    cli.serve_or_make(
        "pilot",
        code=code.project(),
        inputs={str(path): path for path in [*given.runs, *sessions]},
        parameters={
            "runs": list(map(str, given.runs)),
            "references": given.references,
            "asked": given.asked,
        },
        outputs={given.output.name: given.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
