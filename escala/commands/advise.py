"""Advise which configuration of an experiment to use, or not to distribute the training at all.

It measures nothing: an answer takes seconds. Without a calibration the answer is a measured
configuration. docs/how-to/predict-times.md explains it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from escala.analysis.advice.choice import DEADLINE, GOALS, TIME
from escala.core.arguments import Parser, above_zero, whole_number
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import write_json, write_text
from escala.workflow import call as workflow

EXAMPLES = """\
examples:
  escala run advice                        calibrate, and advise for the least time
  escala advise results/demo               advise again
  escala advise results/demo --goal core-hours --nodes 2 --cores 32
  escala advise results/demo --goal deadline --minutes 90
"""


def add(parser: Parser) -> None:
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
    text = "file of the experiment; default: the one in this folder that has this name"
    parser.add_argument("-e", "--experiment", dest="file", metavar="FILE", help=text)


def run(arguments: argparse.Namespace) -> None:
    if arguments.goal == DEADLINE and arguments.minutes is None:
        reason = f"needs the most minutes of the whole job, with --goal {DEADLINE}"
        raise InputError("--minutes", None, reason, "add it, such as --minutes 90")

    from escala.analysis.advice import CALIBRATION, PLANS, Question, advise, text
    from escala.analysis.advice.choice import Limits

    folder = arguments.experiment
    has_plans = any((folder / name).exists() for name in (CALIBRATION, PLANS))
    is_needed = folder.is_dir() and (arguments.file or not has_plans)
    plans = _plans(folder, arguments.file) if is_needed else None
    memory, minutes = arguments.memory_gib, arguments.minutes
    limits = Limits(
        arguments.nodes, arguments.cores, memory and memory * 2**30, minutes and minutes * 60
    )
    question = Question(arguments.goal, limits, arguments.partition, arguments.joules_per_core_hour)
    advice = advise(folder, question, arguments.draws, plans)
    print("\n".join(text.lines(advice)))
    if arguments.json:
        write_json(arguments.json, text.content(advice))
    if arguments.markdown:
        write_text(arguments.markdown, "\n".join(text.markdown(advice)) + "\n")


def _plans(folder: Path, file: str | None) -> dict:
    """Return the plans of a measured experiment, from `file` or from the file of its name."""
    from escala.analysis.cost_model.works import Works, plans, with_rows
    from escala.experiment import find_files, load

    name = folder.resolve().name
    if file is None and (file := find_files(Path.cwd()).get(name)) is None:
        reason = (
            "its runs were planned in the file of its experiment, and no file here has this name"
        )
        remedy = f"name its file: {call('advise', folder)} --experiment FILE"
        raise InputError(folder, name, reason, remedy)
    e = load(workflow.find_file(file))
    if e.name != name:
        reason = f"is the experiment {e.name}, and {folder} holds the results of another"
        raise InputError("--experiment", file, reason, f"name the file of {name}")
    return with_rows(plans(Works(e)), filter(Path.exists, map(Path, e.dataset_files())))
