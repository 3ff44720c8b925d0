"""Compare two commands: which of them takes less time, by how much, and is that certain?

Write the first command after --, and the second after ---. Both are started as they are typed, in
the working directory and on the same cores. Their runs take turns. The first is the reference. It
stops when the interval of their ratio in this session lies above or below 1.
"""

from __future__ import annotations

import argparse

from escala.analysis.verdicts import FASTER, SLOWER
from escala.commands import flow
from escala.core import console
from escala.core.arguments import Parser
from escala.core.errors import InputError
from escala.draft import pair, trial
from escala.draft import program as draft_program

SIDES = ("a", "b")
BETWEEN = "---"
EXAMPLES = """\
examples:
  escala compare -- python train.py --batch 32 --- python train.py --batch 64
  escala compare -- torchrun --nproc-per-node 2 ddp.py --- torchrun --nproc-per-node 2 fsdp.py
  escala compare --name loaders --repeats 10 -- python old.py --- ~/venv/bin/python new.py
  escala compare --json answer.json -- ./a.sh --- ./b.sh

A command that begins with a launcher has as many processes as the launcher is told (--processes N
sets another number); another command is one process on all cores. The options are those of
`escala try --help`, and hold for both. The page calls the first command `a`, and the second `b`.

The same in Python: escala.compare(["python", "a.py"], ["python", "b.py"], repeats=7) returns what
--json writes.
"""


def add(parser: Parser) -> None:
    parser.usage = "escala compare [OPTION …] -- COMMAND … --- COMMAND …"
    flow.add_options(parser)
    parser.add_argument("--force", action="store_true", help="replace another escala-NAME.yaml")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    words = [*arguments.command, *arguments.extra]
    if words.count(BETWEEN) != 1:
        reason = f"holds {BETWEEN} {words.count(BETWEEN)} times"
        remedy = "write the two commands as: escala compare -- COMMAND --- COMMAND"
        raise InputError("command", " ".join(words) or None, reason, remedy)
    place = words.index(BETWEEN)
    commands = words[:place], words[place + 1 :]
    sides = [pair.draft_side(command, arguments) for command in commands]
    # A name has at most 64 letters, and "-pair" may follow.
    name = arguments.name or "-or-".join(dict.fromkeys(side.name for side in sides))[:58]
    if not arguments.name and sides[0].name == sides[1].name:
        name = f"{name}-pair"
    first, second = (" ".join(command) for command in commands)
    title = pair.title_of(
        f"Which takes less time, {first} or {second}?",
        otherwise="Which of two commands takes less time?",
    )
    drafted = pair.pair(dict(zip(SIDES, sides, strict=True)), name, title)
    file = draft_program.file_of(drafted.name)
    experiment = flow.begin(drafted, file, arguments, arguments.force)
    if not experiment:
        return console.DONE
    code, answer = flow.measure(drafted, file, trial.try_pair(experiment), arguments)
    if answer:
        [compared] = answer["comparisons"]
        verdict = {
            SLOWER: "In this session b takes more time than a",
            FASTER: "In this session b takes less time than a",
        }.get(compared["verdict_of_session"], "Whether a or b takes less time is not decided")
        answer["sentences"] = [pair.describe(compared, verdict), *answer["sentences"]]
        flow.print_answer(answer, arguments)
    return code
