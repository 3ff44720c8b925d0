"""Advise which configuration of an experiment to use, or not to distribute the training at all.

It measures nothing: an answer takes seconds. Without a calibration it is among what was measured.
docs/how-to/advise.md explains it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.analysis.advice.choice import DEADLINE, GOALS, TIME
from escala.core.arguments import above_zero, raw_parser, whole_number
from escala.core.files import atomic, write_json

EXAMPLES = """\
examples:
  escala run advice                        calibrate, and advise for the least time
  escala advise results/demo               advise again
  escala advise results/demo --goal core-hours --nodes 2 --cores 32
  escala advise results/demo --goal deadline --minutes 90
"""


def main() -> None:
    read = parser()
    arguments = read.parse_args()
    if arguments.goal == DEADLINE and arguments.minutes is None:
        read.error(f"--goal {DEADLINE} needs --minutes")

    from escala.analysis.advice import text
    from escala.analysis.advice.choice import Limits
    from escala.analysis.advice.document import CALIBRATION, PLANS, Question, advise
    from escala.analysis.cost_model.works import with_rows

    folder = arguments.experiment
    plans = None
    if arguments.plans:
        write_json(folder / PLANS, with_rows(arguments.plans, arguments.datasets))
    elif not any((folder / name).exists() for name in (CALIBRATION, PLANS)):
        plans = plans_of(folder)
    memory, minutes = arguments.memory_gib, arguments.minutes
    limits = Limits(
        arguments.nodes,
        arguments.cores,
        None if memory is None else memory * 2**30,
        None if minutes is None else minutes * 60,
    )
    question = Question(arguments.goal, limits, arguments.partition, arguments.joules_per_core_hour)
    advice = advise(folder, question, arguments.draws, plans)
    print("\n".join(text.lines(advice)))
    if arguments.json:
        write_json(arguments.json, text.content(advice))
    if arguments.markdown:
        with atomic(arguments.markdown) as temporary:
            temporary.write_text("\n".join(text.markdown(advice)) + "\n", encoding="utf-8")


def plans_of(folder: Path) -> dict:
    """Return the plans of a measured experiment, whose file `escala.experiment.named` finds.

    Raises
    ------
    InputError : there is no such file.
    """
    from escala.analysis.cost_model.works import Works, plans, with_rows
    from escala.experiment import named

    e = named(folder.resolve().name, Path.cwd())
    return with_rows(plans(Works(e)), filter(Path.exists, map(Path, e.dataset_files())))


def parser() -> argparse.ArgumentParser:
    parser = raw_parser(__doc__, prog="escala advise", epilog=EXAMPLES)
    parser.add_argument("experiment", type=Path, help="folder of its results, results/NAME")
    parser.add_argument(
        "--goal",
        choices=GOALS,
        default=TIME,
        help="least time of training (default), least core-hours, least energy, or an end within "
        "--minutes with the fewest core-hours",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--nodes", type=whole_number, help="most nodes")
    limits.add_argument("--cores", type=whole_number, help="most cores of all nodes together")
    limits.add_argument("--memory-gib", type=above_zero, metavar="GIB", help="memory of a node")
    limits.add_argument("--minutes", type=above_zero, help="most minutes of the whole job")
    parser.add_argument("--partition", help="SLURM's partition, for the lines of the job script")
    parser.add_argument(
        "--joules-per-core-hour",
        type=above_zero,
        metavar="J",
        help="energy of a core-hour; default: by energy.power_model of the experiment",
    )
    parser.add_argument(
        "--draws",
        type=whole_number,
        default=200,
        help="random draws for the intervals; default: %(default)s",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="advice.json to write")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="advice.md to write")
    plans = parser.add_argument_group("to write plans.json first")
    plans.add_argument(
        "--plans",
        type=cli.json_or_file,
        metavar="JSON",
        help="the experiment, as escala.analysis.cost_model.works describes it",
    )
    plans.add_argument("--datasets", nargs="+", type=Path, metavar="dataset.json")
    return parser


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
