"""`escala new`, `run` and `try` as a user calls them, in a folder of the user's own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from escala.core.hardware import available_cores
from escala.measure.plan import session_file
from tests.calls import python


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "experiments").mkdir()
    return folder


def call(*arguments: str) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "escala.command", *arguments], os.environ | {
        "ESCALA_STORE": "off"
    }


def escala(mine: Path, *arguments: str) -> subprocess.CompletedProcess:
    command, environment = call(*arguments)
    return python(*command[1:], cwd=mine, env=environment)


def fasta(folder: Path) -> list[str]:
    for name, unit in (("NORTH", "ACGT"), ("SOUTH", "AGCT")):
        records = (f">{name}{number}\n{unit * 300}{'A' * number}\n" for number in range(20))
        (folder / f"{name}.fasta").write_text("".join(records))
    return ["--data", str(folder)]


def table(folder: Path) -> list[str]:
    rows = (f"{number % 7},{number**2},{'ab'[number % 2]}\n" for number in range(40))
    (folder / "rows.csv").write_text("".join(rows))
    return ["--data", str(folder / "rows.csv"), "--strategies", "horovod-gloo", "mirrored"]


@pytest.mark.parametrize("make", [fasta, table])
def test_a_written_experiment_can_be_run(make, mine, tmp_path):
    output = f"experiments/new-{make.__name__.replace('_', '-')}.yaml"
    done = escala(mine, "new", *make(tmp_path), "--output", output)
    assert done.returncode == 0, done.stderr
    call = f"uv run escala run --dry-run --experiment {output}"
    assert done.stdout == f"Written: {output}\nNext: {call}\n"
    done = escala(mine, "run", "--experiment", output, "--cores", "2", "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    settings = yaml.safe_load((mine / output).read_text())
    groups = json.loads((mine / session_file(settings["experiment"])).read_text())["groups"]
    trains = sum(each["request"]["instrument"] is None for group in groups for each in group)
    assert trains >= settings["repeats"] * (len(settings["configurations"]) + 1)


def test_what_is_wrong_is_refused_with_one_message_and_nothing_is_written(mine, tmp_path):
    """A file is replaced only by force."""
    output = mine / "experiments" / "kept.yaml"
    output.write_text("mine")
    before = set((mine / "experiments").rglob("*"))
    made = table(tmp_path)
    data = str(tmp_path / "rows.csv")
    for options, said in (
        ([], "--data: is missing"),
        (["--data", data, "-o", "experiments/a b.yaml"], "not allowed as a name"),
        ([*made, "-o", "experiments/kept.yaml"], "--force"),
    ):
        done = escala(mine, "new", *options)
        assert (done.returncode, done.stdout) == (2, ""), options
        message, *_ = done.stderr.splitlines()
        assert message.startswith("escala: ") and said in message, message
    assert set((mine / "experiments").rglob("*")) == before and output.read_text() == "mine"
    assert escala(mine, "new", *made, "-o", "experiments/kept.yaml", "--force").returncode == 0
    assert yaml.safe_load(output.read_text())["experiment"] == "kept"
    output.unlink()


class Terminal:
    """A command that runs in a terminal."""

    def __init__(self, mine: Path, *arguments: str):
        command, environment = call(*arguments)
        self.end, inner = pty.openpty()
        self.process = subprocess.Popen(
            command, cwd=mine, env=environment, stdin=inner, stdout=inner, stderr=inner
        )
        os.close(inner)
        self.said = ""

    def wait_for(self, text: str) -> None:
        while text not in self.said:
            readable, _, _ = select.select([self.end], [], [], 60)
            try:
                self.said += os.read(self.end, 4096).decode() if readable else pytest.fail("silent")
            except OSError:  # The other end is closed.
                pytest.fail(f"no {text!r} in {self.said!r}")
        self.said = self.said.partition(text)[2]

    def answer(self, question: str, text: str = "") -> None:
        self.wait_for(question)
        os.write(self.end, f"{text}\n".encode())

    def close(self) -> int:
        code = self.process.wait(timeout=60)
        os.close(self.end)
        return code


def test_in_a_terminal_it_asks_and_asks_again(mine, tmp_path):
    table(tmp_path)
    terminal = Terminal(mine, "new", "--repeats", "6")
    terminal.answer("Your data", "nothing")
    terminal.wait_for("there is no such file")
    terminal.answer("Your data", str(tmp_path / "rows.csv"))
    terminal.answer("Workload: a name, or your folder [mlp]", "virus-cnn")
    terminal.answer("Workload: a name, or your folder [mlp]")
    terminal.answer("Strategies to compare with one process [horovod-mpi]", "mirrored horovod-gloo")
    terminal.answer("Layouts, NODESxPROCS [1x2]", "two")
    terminal.answer("Layouts, NODESxPROCS [1x2]")
    terminal.answer("Epochs [5]", "many")
    terminal.wait_for("'many' is not a whole number, such as 5")
    terminal.answer("Epochs [5]", "3")
    terminal.answer("File to write [experiments/rows.yaml]", "experiments/a b.yaml")
    terminal.answer("File to write [experiments/rows.yaml]")
    terminal.wait_for("Written: experiments/rows.yaml")
    assert terminal.close() == 0
    settings = yaml.safe_load((mine / "experiments" / "rows.yaml").read_text())
    assert settings["repeats"] == 6 and settings["workloads"]["mlp"]["epochs"] == 3
    strategies = [each["strategy"] for each in settings["configurations"]]
    assert strategies == ["single", "mirrored", "horovod-gloo"]


RANKED = """\
import sys, time
import numpy as np
from escala_steps import epoch, steps
rows, epochs, ranks = map(int, sys.argv[1:])
table, weights = np.ones((512 // ranks, 64)), np.ones((64, 64))
for number in range(epochs):
    for batch in steps([table[i:i + rows] for i in range(0, len(table), rows)], rows=len):
        batch @ weights
        time.sleep(0.01 * len(batch) / 64)
    epoch(loss=1 / (number + 1))
"""


@pytest.mark.all_cores
def test_a_script_is_tried_measured_and_answered(mine):
    (mine / "ranked.py").write_text(RANKED)
    command = ["--", "python", "ranked.py", "{rows_of_rank}", "{epochs}", "{ranks}"]
    options = ["try", "--processes", "2", "--repeats", "2", "--epochs", "2"]
    done = escala(mine, *options, *command)
    if len(available_cores()) < 2:
        assert done.returncode == 2 and "can be compared with nothing" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    # What was taken for known, the trial, and the call that measures.
    for said in (
        "strategy processes",
        "known by its hook",
        "Too short to time well",
    ):
        assert said in done.stderr, said
    runs = re.findall(r"^(\d+) of 6(?:, .* left)?: Run ranked: ", done.stderr, re.MULTILINE)
    assert [*map(int, runs)] == [1, 2, 3, 4, 5, 6]
    assert "ended ok" not in done.stdout, "the answer is printed once"
    runs = {
        tuple(path.parts[-6:-3]): json.loads(path.read_text())
        for path in (mine / "results" / "ranked" / "runs").rglob("rep2/run.json")
    }
    compared = (("1x1", "tuned"), ("1x2", "tuned"), ("1x1", "threads"))
    assert runs.keys() == {("processes", *each) for each in compared}
    assert all(run["status"] == "ok" for run in runs.values())
    # Nothing but the answer is on stdout.
    first, *_, last = done.stdout.strip().splitlines()
    assert "two processes" in first and "*" not in first
    assert last == "Page: results/ranked/index.html, and as text results/ranked/summary.md"
    assert (mine / "results" / "ranked" / "index.html").is_file()
    # The file is kept as it is; another one does not replace it.
    written = (mine / "escala-ranked.yaml").read_text()
    done = escala(mine, *options, "--rows", "32", *command)
    assert done.returncode == 2 and "escala run -e escala-ranked.yaml" in done.stderr
    assert (mine / "escala-ranked.yaml").read_text() == written
    # `new` writes the same. It does not know that the script ends before a window of steps.
    output = ["-o", "experiments/ranked.yaml", "--name", "ranked"]
    options = ["new", "--command", " ".join(command[1:]), *options[1:], *output]
    refused = escala(mine, *options)
    assert refused.returncode == 0, refused.stderr
    made = (mine / "experiments" / "ranked.yaml").read_text()
    assert re.sub(r" *# Seconds of steady.*\n *window: 2\n", "", made) == written


#: Some lines that Snakemake prints.
LINES = ("$ snakemake", "Building DAG of jobs", "Finished jobid", "steps (100%) done")


@pytest.fixture(scope="module")
def small(mine: Path) -> Path:
    """The file of an experiment of four runs."""
    (mine / "trains.py").write_text("print('it trains')")
    configurations = [{"strategy": "single", "layouts": ["1x1"]}]
    settings = {
        "experiment": "small", "title": "Which?", "repeats": 2, "oversubscribe": True,
        "datasets": {"none": {"kind": "files"}},
        "workloads": {"train": {"command": ["python", "trains.py"], "files": ["trains.py"]}},
        "variants": {"a": {}, "b": {}}, "configurations": configurations,
        "references": [{"strategy": "single", "layout": "1x1", "variant": "a"}],
    }  # fmt: skip
    (mine / "small.yaml").write_text(yaml.safe_dump(settings))
    return mine / "small.yaml"


def test_a_call_shows_a_line_for_each_step_and_run_and_then_the_answer(small):
    done = escala(small.parent, "run", "-e", small.name, "-c", "1")
    assert done.returncode == 0, done.stderr
    shown = done.stderr.splitlines()
    steps = [line for line in shown if re.match(r"Step \d of 4: ", line)]
    runs = [line for line in shown if re.match(r"\d of 4(, .* left)?: Run train: ", line)]
    assert (len(steps), len(runs), len(shown)) == (4, 4, 8), done.stderr
    summary = (small.parent / "results/small/summary.md").read_text()
    answer = re.search(r"^\*\*(.*)\*\*", summary, re.MULTILINE)[1]
    assert answer in done.stdout and "results/small/index.html" in done.stdout
    # What is not shown is in the logs.
    assert "it trains" not in done.stdout + done.stderr
    log = max((small.parent / ".snakemake" / "log").glob("*.log"))
    assert all(line in log.read_text() for line in LINES[1:])
    assert "run.json: ok" in (small.parent / "results/small/logs/measure.log").read_text()


def test_with_verbose_snakemake_and_its_jobs_print_all(small):
    done = escala(small.parent, "run", "-v", "-e", small.name, "-c", "1", "report")
    assert done.returncode == 0, done.stderr
    assert all(line in done.stderr for line in LINES) and "figure " in done.stdout


def test_on_a_terminal_a_line_takes_the_place_of_the_line_before(small):
    terminal = Terminal(small.parent, "run", "-e", small.name, "-c", "1", "--again")
    terminal.wait_for("to measure")
    terminal.wait_for("\r\x1b[K1 of 4: Run train")
    before = terminal.said
    terminal.wait_for("\r\x1b[KAll 4 runs ended ok.")
    assert "\n" not in before
    terminal.wait_for("Answer: ")
    assert terminal.close() == 0


def test_an_interrupt_is_said_in_one_line(small):
    (small.parent / "trains.py").write_text("import time\ntime.sleep(600)")
    terminal = Terminal(small.parent, "run", "-e", small.name, "-c", "1")
    terminal.wait_for("1 of 4: Run train")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("interrupted: 0 of 4 runs measured; the same call goes on.\r\n")
    assert terminal.close() == 128 + signal.SIGINT


def test_the_message_of_a_run_that_fails_is_shown_with_the_log(small):
    (small.parent / "trains.py").write_text("raise ValueError('the loss is no number')")
    done = escala(small.parent, "run", "-e", small.name, "-c", "1")
    assert done.returncode == 1
    first, *_ = [line for line in done.stderr.splitlines() if "the loss is no number" in line]
    assert first.startswith("escala: results/small/runs") and "run.json: failed" in first
    assert done.stderr.index(first) < done.stderr.index("2 of 4"), "it is shown at once"
    assert "results/small/logs/all.log" in done.stderr and "4 of 4 runs did not" in done.stderr


@pytest.mark.all_cores
def test_results_that_somebody_else_wrote_stay(mine):
    (mine / "ends.py").write_text("")
    theirs = mine / "results" / "ends"
    theirs.mkdir(parents=True)
    (theirs / "summary.md").write_text("mine")
    command = ["python", "ends.py"]
    tried = escala(mine, "try", "--", *command)
    assert "One run" not in tried.stderr and "--name NAME" in tried.stderr
    escala(mine, "new", "--command", " ".join(command))
    for done in (tried, escala(mine, "run", "-e", "escala-ends.yaml")):
        assert done.returncode and "results/ends" in done.stderr and "touch" in done.stderr
        assert [path.name for path in theirs.iterdir()] == ["summary.md"]
        assert (theirs / "summary.md").read_text() == "mine"
