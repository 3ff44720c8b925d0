"""Check a workload of your own: each part of its contract with yes or no, and the remedy for a no.

The exit code is 1 if any answer is no.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from escala import cli
from escala.core import environment
from escala.core.arguments import Parser
from escala.core.engines import ENGINES


def main() -> int:
    parser = Parser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder that holds its workload.yaml")
    parser.add_argument(
        "--dataset",
        type=Path,
        metavar="SPLIT",
        help="folder of a dataset.json, whose first rows are used; otherwise rows are drawn at "
        "random from the example in workload.yaml",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, help="the one that trains; default: the first with a network"
    )
    parser.add_argument("--kind", type=Path, help="folder of the dataset's kind, if it is your own")
    parser.add_argument(
        "--settings",
        type=cli.json_or_file,
        default={},
        metavar="JSON",
        help="settings of the workload in an experiment",
    )
    arguments = parser.parse_args()
    environment.prepare(Path(__file__).resolve().parent.parent)
    from escala.check.workload import answers

    able = True
    with tempfile.TemporaryDirectory() as scratch:
        for answer in answers(
            arguments.folder,
            Path(scratch),
            dataset=arguments.dataset,
            kind=arguments.kind,
            settings=arguments.settings,
            engine=arguments.engine,
        ):
            print(answer, flush=True)
            able &= answer.able
    return 0 if able else 1


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
