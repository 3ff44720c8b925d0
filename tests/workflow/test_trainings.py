"""Small trainings as people write them: what `escala try` says of each is true, or it is refused.

All are one script with other parts: how it knows its rank, what it prints and when, what it writes,
how it ends; and one command with other words before it. They sleep in place of training.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import pytest

from escala.core import console
from escala.engines import environments

pytestmark = [pytest.mark.cold, pytest.mark.all_cores]

SCRIPT = """\
import json, os, subprocess, sys, time
<imports>

def say(text, end="\\n"):
    print(text, end=end, flush=True)

def train(rank, world):
    first = 0
    <begin>
    for epoch in range(first, <epochs>):
        loss = 1 / (epoch + 2)
        <before_epoch>
        for step in <loop>:
            <work>
            <after_step>
        <after_epoch>
    <end>

if __name__ == "__main__":
    <start>
"""
#: Of a script that says what it did at the end of each epoch, in one process.
USUAL = {
    "epochs": "3",
    "loop": "range(4)",
    "work": "time.sleep(0.1)",
    "after_epoch": 'if rank == 0: say(f"epoch {epoch + 1}: loss {loss:.4f}")',
    "start": "train(0, 1)",
}
#: Finds it, as the documentation writes it.
EPOCHS = r"--regex 'epoch \d+: loss (?P<loss>[0-9.]+)'"
UNKNOWN = "not known"


@dataclass(frozen=True)
class Training:
    """A training, and what is true of it.

    Attributes
    ----------
    command, options : what a person types, and what stands before it; words as of a shell.
    parts : of the script, in place of those in `USUAL`.
    files, variables : further files of the folder, and variables of the shell.
    torch : whether the interpreter of the shell is that of PyTorch.
    processes : that train, in the trial of one process and in that of several.
    world : ranks of the group that they join, in both; None if they join none.
    epochs, steps : number of epochs, and of the steps of one; of the trial, which asks for two.
    hidden : what of this the output does not tell.
    scores : the last value of each.
    seconds : of an epoch of one process.
    twice : whether several processes do the work of one several times.
    refused : why it cannot be measured, as a pattern of the message; None if it can.
    says : what else is true and has to be said, as a pattern.
    """

    command: str = "python train.py"
    options: str = EPOCHS
    parts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    torch: bool = False
    processes: tuple[int, ...] = (1,)
    world: tuple[int, ...] | None = None
    epochs: int = 3
    steps: int = 4
    hidden: tuple[str, ...] = ("steps",)
    scores: Mapping[str, float] = field(default_factory=lambda: {"loss": 0.25})
    seconds: float | None = 0.4
    twice: bool = False
    refused: str | None = None
    says: str | None = None

    def files_of(self) -> dict[str, str]:
        """Return the text of each file of its folder, by path."""
        parts = USUAL | self.parts

        def part(match: re.Match) -> str:
            # A part of several lines stands as deep as its first one.
            return textwrap.indent(parts.get(match[2], ""), match[1])

        return {"train.py": re.sub(r"( *)<(\w+)>", part, SCRIPT)} | self.files


def _plain(**changes: object) -> Training:
    """Return a training in one process, of which only threads are compared."""
    return replace(Training(), **changes)


def _prints(after_epoch: str, **changes: object) -> Training:
    return _plain(parts={"after_epoch": after_epoch}, **changes)


def _reports(value: str, **changes: object) -> Training:
    """Return a training that reports one value in each epoch."""
    return _prints(f'say(f"epoch {{epoch + 1}}: loss {value}")', **changes)


def _of_steps(after_step: str, pattern: str, **changes: object) -> Training:
    """Return a training of 20 steps after a start of a second, with no word on epochs.

    The end of its first step is where its time begins.
    """
    parts = {
        "begin": "time.sleep(1)",
        "epochs": "1",
        "loop": "range(20)",
        "work": "time.sleep(0.05); loss = 1 / (step + 1)",
        "after_step": after_step,
        "after_epoch": "",
    }
    usual = {"epochs": 1, "steps": 19, "hidden": (), "scores": {"loss": 0.05}, "seconds": 0.95}
    return _plain(parts=parts, options=f"--step-ends '{pattern}'", **(usual | changes))


_BAR = (
    "say(f\"\\rEpoch {epoch + 1}: {25 * (step + 1):3}%|{'#' * step}| {step + 1}/4 "
    '[00:01<00:01, 9.5it/s, loss={loss:.3f}]", "\\n" if step == 3 else "")'
)
_WHOLE = {"options": "", "hidden": ("epochs", "steps"), "scores": {}, "seconds": None}
#: Starts as many processes as an argument says.
_SPAWNS = """\
import multiprocessing
world = <world>
ranks = [multiprocessing.Process(target=train, args=(rank, world)) for rank in range(world)]
[each.start() for each in ranks]
[each.join() for each in ranks]
"""
_EACH = 'say(f"[rank {rank}] epoch {epoch + 1}: loss {loss:.4f}")'
_HOOK = {
    "imports": "from escala_steps import epoch as ends, steps",
    "loop": "steps(range(4))",
    "after_epoch": "ends(loss=loss)",
}
_SNAPSHOT = {
    "begin": "if os.path.exists('last.json'): first = json.load(open('last.json'))['epochs']",
    "after_epoch": USUAL["after_epoch"]
    + "\njson.dump({'epochs': epoch + 1}, open('last.json', 'w'))",
}
_VARIABLES = 'train(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))'

#: In one process.
ALONE = {
    "epochs at their ends": _plain(),
    "epochs from 0, with a rank": _prints(
        'say(f"[rank {rank}] epoch {epoch}: loss {loss:.4f}")'
    ),
    "epochs at their begins": _plain(
        options=r"--epoch-ends 'Epoch \d+/2'",
        parts={
            "before_epoch": 'say(f"Epoch {epoch + 1}/2")', "epochs": "2",
            "work": "time.sleep(0.2)", "after_epoch": "",
        },
        refused="may begin an epoch",
    ),
    "bar that returns": _plain(
        options=r"--regex 'Epoch \d+.*loss=(?P<loss>[0-9.]+)'",
        parts={"after_step": _BAR, "after_epoch": ""},
    ),
    "bar of all epochs": _plain(
        options=r"--regex 'Epochs.*loss=(?P<loss>[0-9.]+)'",
        parts={
            "after_epoch":
                'say(f"\\rEpochs: {33 * (epoch + 1)}%|##  | {epoch + 1}/3 [00:01<00:01, '
                'loss={loss:.3f}]", "")',
        },
    ),
    "bar of Keras": _plain(
        options=r"--regex 'loss: (?P<loss>[0-9.]+)'",
        parts={
            "before_epoch": 'say(f"Epoch {epoch + 1}/3")',
            "after_step":
                'say(f"\\r{step + 1}/4 ━━━━━━━ 0s 99ms/step - loss: {loss:.4f}", '
                '"\\n" if step == 3 else "")',
            "after_epoch": "",
        },
    ),
    "nothing": _prints("", **_WHOLE),
    "nan": _reports("{loss if epoch < 1 else float('nan')}", refused="diverged|loss nan"),
    "inf of one epoch": _reports("{'inf' if epoch == 1 else loss}", refused="loss inf"),
    "negative": _reports("{-12.5 - epoch}", scores={"loss": -14.5}),
    "exponent": _reports("{3.2e-05 / (epoch + 1)}", scores={"loss": 3.2e-05 / 3}),
    "decimal comma": _reports("0,{625 - epoch:04}", scores={"loss": 0.0623}),
    "thousands": _reports("{12345.5 - epoch:,}", scores={"loss": 12343.5}),
    "colours": _prints(
        r'''say(f"\x1b[1mepoch {epoch + 1}\x1b[0m: loss \x1b[32m{loss:.4f}\x1b[0m")'''
    ),
    "Latin-1": _prints(
        'sys.stdout.buffer.write(f"époque {epoch + 1}: perte {loss}\\n".encode("latin-1")); '
        "sys.stdout.flush()",
        options=r"--regex 'époque \d+: perte (?P<loss>[0-9.]+)'",
    ),
    "line before the end": _prints(
        USUAL["after_epoch"] + '\nif epoch == 2: say(f"final: loss {loss:.4f} of all")',
        options=r"--regex 'loss (?P<loss>[0-9.]+)'",
    ),
    "best epoch at the end": _plain(
        parts={"end": 'time.sleep(0.2); say("best epoch 2: loss 0.9")'},
        says="1 of 4 lines.* left out"
    ),
    "earlier epoch at the end": _plain(
        parts={"end": 'time.sleep(0.2); say("restores epoch 2: loss 0.9")'}, says="epoch 2 again"
    ),
    "two lines of an epoch": _prints(
        USUAL["after_epoch"] + '\nsay(f"epoch {epoch + 1}: validation loss {2 * loss:.4f}")',
        options=r"--regex 'epoch \d+: .*loss (?P<loss>[0-9.]+)'", scores={"loss": 0.5},
    ),
    "epochs at their first steps": _plain(
        parts={
            "work": "time.sleep(0.3)", "after_epoch": "",
            "after_step": 'if step == 0: say(f"epoch {epoch + 1}: loss {loss:.4f}")',
        },
        seconds=1.2, says="begins an epoch, the last one is not timed",
    ),
    "two lines without a number": _prints(
        'say(f"loss {loss:.4f}"); time.sleep(0.02); say(f"validation loss {2 * loss:.4f}")',
        options=r"--regex 'loss (?P<loss>[0-9.]+)'", scores={"loss": 0.5},
    ),
    "every second epoch": _plain(
        parts={
            "epochs": "6", "loop": "range(2)",
            "after_epoch": "if epoch % 2: " + USUAL["after_epoch"].partition(": ")[2],
        },
        scores={"loss": 1 / 7}, says="grow by 2: so many are called one",
    ),
    "two folds": _plain(
        parts={"epochs": "2", "start": "train(0, 1); train(0, 1)"},
        epochs=4, scores={"loss": 1 / 3},
    ),
    "times beside scores": _prints(
        'say(f"epoch {epoch + 1} took {0.4:.1f} s, accuracy {90 + epoch:.1f}%")',
        options=r"--regex 'epoch \d+ took (?P<seconds>[0-9.]+) s, accuracy (?P<accuracy>[0-9.]+)'",
        scores={"accuracy": 92.0},
    ),
    "every step": _of_steps(
        'say(f"iter {step}: loss {loss:.4f}")', r"iter \d+: loss (?P<loss>\S+)"),
    "every tenth step": _of_steps(
        'if step % 10 == 0: say(f"iter {step}: loss {loss:.4f}")',
        r"iter \d+: loss (?P<loss>\S+)", steps=10, scores={"loss": 1 / 11}, seconds=0.5,
    ),
    "steps of a bar": _of_steps(
        'say(f"\\r{step + 1}/20 [00:00<00:01, 19.8it/s, loss={loss:.3f}]", "")',
        r"/20 .*loss=(?P<loss>[0-9.]+)",
    ),
    "steps without a number": _of_steps(
        'say(f"loss {loss:.4f}")', "loss (?P<loss>[0-9.]+)", says="each is taken for one step"
    ),
    "steps and epochs": _plain(
        options=EPOCHS + r" --step-ends 'step \d+ of'",
        parts={"after_step": 'say(f"step {step + 1} of 4")'}, hidden=(),
    ),
    "hook": _plain(options="", parts=_HOOK, hidden=()),
    "hook, loop left by break": _plain(
        options="", hidden=(), steps=3, seconds=0.3,
        parts=_HOOK | {"loop": "steps(range(9))", "after_step": "if step == 2: break"},
    ),
    "hook, score of no number": _plain(
        options="", parts=_HOOK | {"after_epoch": "ends(loss=loss, accuracy='n/a')"},
        hidden=(), says="accuracy that is no number",
    ),
    "hook and epochs asked for": _plain(
        command="python train.py {epochs}", options="", hidden=(), epochs=2,
        parts=_HOOK | {"epochs": "int(sys.argv[1])"}, scores={"loss": 1 / 3},
    ),
    "loop left by break": _plain(
        parts={"loop": "range(9)", "after_step": "if step == 3: break"}
    ),
    "epochs asked for": _plain(
        command="python train.py --epochs {epochs}", parts={"epochs": "int(sys.argv[2])"},
        epochs=2, scores={"loss": 1 / 3},
    ),
    "epochs asked for and not obeyed": _plain(
        command="python train.py --epochs {epochs}", refused="reported 3 of 2 epochs"
    ),
    "resumes": _plain(parts=_SNAPSHOT),
    "resumes from an earlier day": _plain(
        parts=_SNAPSHOT, files={"last.json": '{"epochs": 1}'}, epochs=2
    ),
    "writes over its model": _plain(
        parts={"end": "open('model.pt', 'w').write('of a trial'); os.mkdir('logs')"},
        files={"model.pt": "of a week"},
    ),
    "has results of its own": _plain(
        files={"results/train/summary.md": "mine"}, refused="results/train"
    ),
    "ends at once": _plain(
        options="", parts={"start": 'say("needs 2 GPUs. Exiting.")'},
        refused=r"right after its imports.*needs 2 GPUs",
    ),
    "fails at its end": _plain(parts={"end": "sys.exit('no space left')"}, refused="no space left"),
    "prints other words": _plain(options="--regex 'Epoch: '", refused="matched no line"),
    "variable of the shell": _plain(
        variables={"TRAIN_EPOCHS": "2"}, epochs=2, scores={"loss": 1 / 3},
        parts={"epochs": 'int(os.environ.get("TRAIN_EPOCHS", 9))'},
    ),
    "variable before it": _plain(
        command="TRAIN_EPOCHS=2 python train.py", epochs=2, scores={"loss": 1 / 3},
        parts={"epochs": 'int(os.environ.get("TRAIN_EPOCHS", 9))'},
    ),
    "nice": _plain(command="nice -n 1 python train.py"),
    "script of the shell": _plain(
        command="./train.sh", files={"train.sh": "#!/bin/sh\necho begins\npython train.py\n"}
    ),
    "two commands": _plain(
        command="sh -c 'python prepare.py && python train.py'",
        files={"prepare.py": "print('ready')"},
    ),
    "two commands without a shell": _plain(
        command="'python prepare.py && python train.py'",
        files={"prepare.py": "print('ready')"}, refused="&&",
    ),
    "several processes of its own": _plain(
        parts={"start": _SPAWNS.replace("<world>", "2"), "after_epoch": _EACH}, processes=(2,)
    ),
    "ranks of its own": _plain(
        parts={
            "start":
                'places = [os.environ | {"RANK": each, "WORLD_SIZE": "2"} for each in "01"]\n'
                "code = 'import time; time.sleep(1.2)'\n"
                "ranks = [subprocess.Popen([sys.executable, '-c', code], env=each) "
                "for each in places]\n"
                "[each.wait() for each in ranks]",
        },
        options="", refused="starts 2 ranks itself",
    ),
}  # fmt: skip

#: Ways to start several processes: what a person types, how the script knows its rank, and more.
LAUNCHERS = {
    "torchrun": ("torchrun --nproc_per_node 2 train.py", _VARIABLES, {}),
    "torchrun -m": (
        "python -m torch.distributed.run --standalone --nproc-per-node=2 train.py", _VARIABLES, {},
    ),
    "torchrun of four": (
        "torchrun --nproc_per_node=4 train.py", _VARIABLES, {"says": "is left out"},
    ),
    "VAR=1 torchrun": ("MODE=fast torchrun --nproc_per_node 2 train.py", _VARIABLES, {}),
    "env torchrun": ("env MODE=fast torchrun --nproc_per_node 2 train.py", _VARIABLES, {}),
    "nice torchrun": ("nice torchrun --nproc_per_node 2 train.py", _VARIABLES, {}),
    "torch.distributed.launch": (
        "python -m torch.distributed.launch --nproc_per_node 2 train.py",
        'rank = int(([each for each in sys.argv if "local" in each] or ["=-1"])[0].split("=")[1])\n'
        'train(max(0, rank), 1 if rank < 0 else int(os.environ["WORLD_SIZE"]))',
        {"says": "--local.rank"},
    ),
    "mpirun": (
        "mpirun -n 2 python train.py",
        'train(*(int(os.environ["OMPI_COMM_WORLD_" + each]) for each in ("RANK", "SIZE")))', {},
    ),
    "numbers": (
        "python train.py {rank} {ranks}", "train(int(sys.argv[1]), int(sys.argv[2]))", {},
    ),
    "multiprocessing": (
        "python train.py {ranks_of_node}", _SPAWNS.replace("<world>", "int(sys.argv[1])"), {},
    ),
}  # fmt: skip
#: What such a script prints, and which of them two ways are tried with each way to start it.
PRINTS = {
    "from rank 0": {},
    "from every rank": {"parts": {"after_epoch": _EACH}},
    "bars of every rank": {
        "options": r"--regex 'Epoch \d+.*loss=(?P<loss>[0-9.]+)'",
        "parts": {"after_step": _BAR, "after_epoch": ""},
    },
    "hook": {"options": "", "parts": _HOOK, "hidden": ()},
    "nothing": _WHOLE | {"parts": {"after_epoch": ""}},
}


def _launched() -> Iterator[tuple[str, Training]]:
    """Yield trainings of which several processes divide the work, with each way to start them."""
    for at, ((launcher, (command, start, more)), (prints, told)) in enumerate(
        product(LAUNCHERS.items(), PRINTS.items())
    ):
        # Of five, the first and the third, then the second and the fourth, …
        if (at % 5 - at // 5) % 5 in (0, 2):
            parts = {"start": start, "work": "time.sleep(0.1 / world)"} | told.get("parts", {})
            if prints == "hook":
                parts["loop"] = "steps(range(rank, 4, world))"
                parts["work"] = "time.sleep(0.1)"
            changes = {"processes": (1, 2)} | told | {"parts": parts} | more
            yield f"{launcher}: {prints}", _plain(command=command, **changes)


_RANKS = {"command": "torchrun --nproc_per_node 2 train.py", "processes": (1, 2)}
_BURNS = "end = time.process_time() + 0.15\nwhile time.process_time() < end: pass"
#: Of several processes, and not as their command or their script promises.
TOGETHER = {
    "each does the whole work, by its hook": _plain(
        **_RANKS, options="", parts=_HOOK | {"start": _VARIABLES}, hidden=(), twice=True
    ),
    "each does the whole work, by its cores": _plain(
        **_RANKS, parts={"start": _VARIABLES, "work": _BURNS}, seconds=0.6, twice=True
    ),
    "knows of no ranks": _plain(**_RANKS, refused="none of the 2 processes asked which"),
    "knows of no ranks, under --torch": _plain(
        options=f"--torch {EPOCHS}", refused="none of the 2 processes asked which"
    ),
    "knows of no ranks, under mpirun": _plain(
        command="mpirun -n 2 python train.py", refused="none of the 2 processes asked which"
    ),
    "launcher that obeys no number": _plain(
        command="python train.py {ranks_of_node}", refused="asked for 2 ranks, and 1 of its",
        parts={"start": _SPAWNS.replace("<world>", "1")},
    ),
    "launcher without a number": _plain(
        options=f"--launcher {EPOCHS}", refused="same number of ranks",
    ),
    "lines of every rank without a number": _plain(
        command="python train.py {ranks_of_node}", options="--regex 'loss (?P<loss>[0-9.]+)'",
        parts={
            "start": _SPAWNS.replace("<world>", "int(sys.argv[1])"),
            "after_epoch": 'time.sleep(0.02 * rank); say(f"done, loss {loss:.4f}")',
        },
        refused="3 times and 6 times",
    ),
}  # fmt: skip

_JOINS = {
    "imports": "import torch, torch.distributed as group",
    "start": 'group.init_process_group("gloo")\n'
    "train(group.get_rank(), group.get_world_size())\ngroup.destroy_process_group()",
    "work": "time.sleep(0.1 / world)\nif world > 1: group.all_reduce(torch.ones(1))",
}
_MAY_JOIN = _JOINS | {
    "start": 'if "RANK" in os.environ:\n'
    + textwrap.indent(_JOINS["start"], "    ")
    + "\nelse: train(0, 1)"
}
_OF_GROUP = {"torch": True, "processes": (1, 2), "world": (1, 2)}
#: With a process group of PyTorch.
JOINED = {
    "group under torchrun": _plain(command=_RANKS["command"], **_OF_GROUP, parts=_JOINS),
    "group, every rank prints": _plain(
        command="python -m torch.distributed.run --nproc_per_node 2 train.py", **_OF_GROUP,
        parts=_JOINS | {"after_epoch": _EACH},
    ),
    "group of a script alone": _plain(**_OF_GROUP, parts=_JOINS, says="init_process_group"),
    "group if there are ranks": _plain(**_OF_GROUP, parts=_MAY_JOIN),
    "group that needs a GPU": _plain(
        torch=True, parts=_MAY_JOIN | {"begin": "if world > 1: torch.ones(1).to('cuda:7')"},
        says="works as it is typed",
    ),
    "group of its own launcher": _plain(
        command="torchrun --nproc_per_node {ranks_of_node} train.py", **_OF_GROUP,
        parts=_JOINS | {"after_epoch": _EACH},
    ),
    "group of two torchruns": _plain(
        command="sh -c 'torchrun --nproc_per_node 2 train.py'", torch=True, parts=_JOINS,
        refused="starts 2 ranks itself",
    ),
    "group of one": _plain(
        command=_RANKS["command"], torch=True, refused="found itself alone",
        parts=_JOINS | {"begin": "world = 1", "start":
            'group.init_process_group("gloo", store=group.HashStore(), rank=0, world_size=1)\n'
            'train(int(os.environ["RANK"]), 1)'},
    ),
}  # fmt: skip

TRAININGS = ALONE | dict(_launched()) | TOGETHER | JOINED


def write(training: Training, folder: Path) -> None:
    """Write the files of a training into a folder."""
    for name, text in training.files_of().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755 if name.endswith(".sh") else 0o644)


#: Any time is so long that the command asks before it measures, and nobody is there to answer.
_TRY = """
import importlib
from escala import command
importlib.import_module("escala.commands.try").ASK_SECONDS = 0
raise SystemExit(command.main())
"""


def tried(training: Training, folder: Path) -> subprocess.CompletedProcess:
    """Call `escala try` in the folder of a training; it ends after its trial."""
    options = ["--processes", "2", *shlex.split(training.options)]
    call = [sys.executable, "-c", _TRY, "try", *options, "--"]
    variables = os.environ | training.variables
    if training.torch:
        theirs = Path(environments.python("torch")).parent
        variables["PATH"] = f"{theirs}{os.pathsep}{variables['PATH']}"
    return subprocess.run(
        [*call, *shlex.split(training.command)], cwd=folder, env=variables,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def told(said: str) -> list[dict[str, str]]:
    """Return what a trial said that it found: of one process, and of several."""
    found = []
    for line in re.findall(r" Found: (.*)\.$", said, re.MULTILINE):
        parts = dict(part.partition(": ")[::2] for part in line.split("; "))
        world = re.fullmatch(r"(\d+) of a group of \1", parts.get("ranks", ""))
        found.append(
            {
                "processes": parts["processes at work"].partition(",")[0],
                "world": world[1] if world else parts.get("ranks", "none"),
                "epochs": parts["epochs"],
                "steps": parts.get("steps of one", UNKNOWN),
                "scores": parts["scores"],
            }
        )
    return found


def true(training: Training) -> list[dict[str, str]]:
    """Return what is true of a training, as `told` returns what was said."""
    scores = ", ".join(f"{name} {value:.4g}" for name, value in training.scores.items())
    return [
        {
            "processes": str(processes),
            "world": str(training.world[at]) if training.world else "none",
            "epochs": str(training.epochs),
            # Several divide what one does.
            "steps": "-"
            if "steps" in training.hidden
            else str(training.steps if training.twice else training.steps // (at + 1)),
            "scores": scores or "none",
        }
        for at, processes in enumerate(training.processes)
    ]


def judged(training: Training, done: subprocess.CompletedProcess) -> tuple[str, list[str]]:
    """Return `right`, `refused`, `unknown` or `WRONG`, and how what was said differs from truth."""
    said = done.stderr
    last = next((line for line in reversed(said.splitlines()) if line.startswith("escala: ")), said)
    if training.refused or done.returncode != console.NO_TIME:
        refused = done.returncode == console.WRONG and re.search(training.refused or "(?!)", last)
        return ("refused", []) if refused else ("WRONG", [f"{done.returncode}: {last}"])
    found, wanted, wrong, unknown = told(said), true(training), [], []
    if len(found) != len(wanted):
        wrong.append(f"{len(found)} trials, not {len(wanted)}")
    for each, truth in zip(found, wanted, strict=False):
        for name, text in each.items():
            if text == UNKNOWN:
                unknown += [] if name in training.hidden else [name]
            elif not _same(text, truth[name]):
                wrong.append(f"{name}: {text}, not {truth[name]}")
    if took := re.search(r"the last one took ([\d.e-]+) s", said):
        least = training.seconds or 0.0
        if not 0.9 * least <= float(took[1]) <= 2 * least + 0.2:
            wrong.append(f"an epoch of {took[1]} s, not {least}")
    if bool(re.search(r"Together the 2 take \S+ times", said)) is not training.twice:
        wrong.append("twice the work" + (" is not said" if training.twice else ""))
    if training.says and not re.search(training.says, said):
        wrong.append(f"not said: {training.says}")
    return ("WRONG" if wrong else "unknown" if unknown else "right"), wrong or unknown


def _same(said: str, truth: str) -> bool:
    """Return whether two lists of names and numbers are alike."""
    mine, theirs = re.split(r",? ", said), re.split(r",? ", truth)
    return len(mine) == len(theirs) and all(map(_alike, mine, theirs))


def _alike(said: str, truth: str) -> bool:
    try:
        return math.isclose(float(said), float(truth), rel_tol=1e-3)
    except ValueError:
        return said == truth


def state(folder: Path) -> dict[str, str]:
    """Return what a folder holds: the digest of each file by path, and its folders."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in folder.rglob("*")
    }


#: The others show further combinations.
QUICK = ("nan",)


def _marks(name: str, training: Training) -> list[pytest.MarkDecorator]:
    torch = [pytest.mark.torch] if training.torch else []
    return torch + ([] if name in QUICK else [pytest.mark.sweep])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=_marks(n, each), id=n) for n, each in TRAININGS.items()]
)
def test_what_a_trial_says_of_a_training_is_true_and_its_folder_stays(name, tmp_path):
    training = TRAININGS[name]
    write(training, tmp_path)
    before = state(tmp_path)
    done = tried(training, tmp_path)
    verdict, why = judged(training, done)
    assert verdict in ("right", "refused"), f"{why}\n{done.stderr}"
    after = state(tmp_path)
    made = [after.pop(path) and path for path in after.keys() - before.keys()]
    assert after == before and len(made) == (verdict == "right"), made
    assert all(re.fullmatch(r"escala-\w+\.yaml", path) for path in made)
