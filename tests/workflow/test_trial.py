"""Short runs of a program: what is wrong with it, and what each run would start."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from escala import trial
from escala.core import plugins
from escala.core.errors import InputError
from escala.core.variables import CALLERS_PATH
from escala.experiment import Experiment
from escala.workloads import WORKLOADS
from tests.programs import experiment_on

pytestmark = pytest.mark.cold

EPOCHS = """\
import sys, time
from escala_steps import epoch, steps
for number in range(int(sys.argv[1])):
    for batch in steps(range(4)):
        time.sleep(float(sys.argv[2]))
    epoch(loss=1.0)
"""


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """Return a function from a script and its arguments to an experiment on it."""
    monkeypatch.setenv(plugins.VARIABLE, "{}")

    def make(
        source: str, *arguments: str, strategy: str = "single", more: str = "2x2", **further
    ) -> Experiment:
        (tmp_path / "train.py").write_text(source)
        layouts = ["1x1"] if strategy == "single" else ["1x1", more]
        program = {"command": ["python", "train.py", *arguments], "directory": str(tmp_path)}
        program |= {"environment": {"python": sys.executable}, "files": [], **further}
        settings = experiment_on(
            "tried",
            {"tried": program},
            repeats=2,
            configurations=[{"strategy": strategy, "layouts": layouts}],
        )
        return Experiment(settings, "tried.yaml")

    yield make
    WORKLOADS.pop("tried", None)


def first(experiment: Experiment, **how: float) -> trial.Trial:
    return trial.tried(experiment, experiment.runs[0], **how)


@pytest.mark.parametrize(
    ("source", "reasons", "remedy"),
    [
        ("import no_such_module", ["no_such_module"], "--python"),
        ("name = input('Your name? ')", ["asks for input", "Your name?"], "argument"),
        ("print('half'); raise SystemExit('bad rate')", ["exit code 1", "half | bad rate"], ""),
        ("import argparse; argparse.ArgumentParser().parse_args()", ["--word"], "options"),
        ("import os; os.kill(os.getpid(), 9)", ["signal 9", "wrote nothing"], "what ends it"),
        ("import os; os.environ['WORLD_SIZE']", ["WORLD_SIZE"], "--torch"),
        ("import os; os.environ['TF_CONFIG']", ["TF_CONFIG"], "--tf-config"),
        ("import os; os.environ['OWN_CACHE']", ["OWN_CACHE"], "--variable OWN_CACHE"),
        ("print('epoch one of two')", ["epoch one of two"], "epoch_ends"),
    ],
)
def test_a_program_that_fails_is_refused_with_its_last_lines(
    source, reasons, remedy, experiment, monkeypatch
):
    monkeypatch.setenv("OWN_CACHE", "here")
    further = {"epoch_ends": r"Epoch \d"} if remedy == "epoch_ends" else {}
    with pytest.raises(InputError) as refused:
        first(experiment(source, "--word", **further))
    for each in reasons:
        assert each in refused.value.reason, refused.value
    assert remedy in str(refused.value) and refused.value.remedy
    # Of the program only: not of the process that started it.
    assert not re.search(r"escala[.:]|/escala/", refused.value.reason), refused.value


@pytest.mark.parametrize(
    ("source", "arguments", "further", "said", "unsaid"),
    [
        # It makes two epochs, of three that are to be measured.
        (EPOCHS, ("{epochs}", "0.3"), {"epochs": 3}, ["its hook; the last one took 1."], "short"),
        ("print('done it')", (), {}, ["no steps", "done it", "Too short", "--epoch-ends"], "hook;"),
        ("import json, numpy", (), {}, ["Most of the run is no training", "2 runs"], "Too short"),
        ("import time\nfor n in '123': time.sleep(1.1); print('\\repoch', n, end='')", (),
         {"epoch_ends": "epoch (?P<n>.)"}, ["lines of its output; the last one took 1."], "short"),
    ],
)  # fmt: skip
def test_what_a_program_told_is_said(source, arguments, further, said, unsaid, experiment):
    tried = experiment(source, *arguments, **further)
    text = "\n".join(trial.report(first(tried), None, tried))
    for each in (*said, "2 runs follow"):
        assert each in text, text
    assert unsaid not in text


def test_a_program_of_which_only_another_rank_fails_is_refused(experiment):
    source = "import os; assert os.environ['RANK'] == '0', 'this rank has no shard'"
    tried = experiment(source, strategy="torch-ddp", more="1x2")
    assert first(tried).ended
    run = trial.together(tried)
    assert run.layout == "1x2"
    with pytest.raises(InputError, match=r"two processes on one node: .*this rank has no shard"):
        trial.tried(tried, run)


SLEEP = """\
import os, sys, time
print("early", flush=True)
time.sleep(float(sys.argv[int(os.environ["WORLD_SIZE"])]))
"""


@pytest.mark.parametrize("long", [False, True])
def test_several_processes_that_take_longer_than_one_are_told(long, experiment):
    tried = experiment(SLEEP, "9" if long else "0", "4", strategy="torch-ddp", more="1x2")
    found = first(tried, limit_seconds=5)
    several = trial.tried_together(tried, trial.together(tried), found)
    text = "\n".join(trial.report(found, several, tried))
    assert ("Two processes on one node ended without an error after" in text) is not long
    estimate = re.search(r"4 runs follow\. If they take as long as these, that is (\d+)", text)
    assert (estimate is None) is long and (long or int(estimate[1]) >= 8), text


def test_several_processes_that_wait_for_each_other_are_refused(experiment):
    tried = experiment(SLEEP, "0", "99", strategy="torch-ddp", more="1x2")
    with pytest.raises(InputError, match=r"two processes.* did not end within.*: early.*wait"):
        trial.tried_together(tried, trial.together(tried), first(tried), limit_seconds=3)


EACH = """\
import subprocess, sys, time
if len(sys.argv) == 2:
    ranks = [[sys.executable, __file__, str(rank), ""] for rank in range(int(sys.argv[1]))]
    for each in [subprocess.Popen(rank) for rank in ranks]:
        each.wait()
else:
    for epoch in range(3):
        time.sleep(0.3 + 0.1 * int(sys.argv[1]))
        print("end of an epoch, loss 0.5", flush=True)
"""


def test_lines_that_each_process_may_write_are_refused(experiment):
    """Nothing in them tells one epoch from another."""
    pattern = {"epoch_ends": r"epoch, loss (?P<loss>\S+)"}
    tried = experiment(EACH, "{ranks_of_node}", strategy="own-launcher", more="1x2", **pattern)
    with pytest.raises(InputError, match=r"two processes.* 3 times and 6 times.*\?P<epoch>"):
        trial.tried_together(tried, trial.together(tried), first(tried))


def test_a_program_that_takes_long_is_ended_and_that_is_no_error(experiment):
    tried = experiment(EPOCHS, "{epochs}", "2", epochs=100)
    found = first(tried, limit_seconds=3)
    assert (found.ended, found.seconds) == (False, 3)
    text = "\n".join(trial.report(found, None, tried))
    assert "no error" in text and "at least 6 s" in text
    assert "known by its hook" in text


def test_what_would_start_is_shown_and_nothing_is_started(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv(CALLERS_PATH, "/of/the/caller")
    source = "open('started', 'w')"
    tried = experiment(source, "{rank}", "{rows_of_rank}", strategy="torch-ddp",
                       batch={"rows": 64, "per": "global"})  # fmt: skip
    first, *lines = trial.starts(tried)
    assert first.startswith("One process (torch-ddp 1x1 plain): 1 started by local")
    text = "\n".join(lines)
    assert f"PATH={Path(sys.executable).parent}:$PATH " in text
    assert f"{sys.executable} train.py 0 64" in text
    # Of four processes on two nodes, the first and the last.
    for rank in (0, 3):
        assert re.search(rf" RANK={rank} .*{sys.executable} train.py {rank} 16", text), text
    for each in ("WORLD_SIZE=4", "OMP_NUM_THREADS=1", "MASTER_ADDR=NODE1", r"cores \d+:"):
        assert re.search(each, text), text
    assert not (tmp_path / "started").exists()


def test_the_answer_is_the_first_lines_of_the_summary(tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text(
        "# Title\n\n**Yes: 0.6.** ([ratios](tables/r.csv), [f](figures/f.svg))\n\n- Of seven.\n\n"
        "## Why\n\n- Because.\n"
    )
    assert trial.answer(summary) == ["Yes: 0.6.", "- Of seven."]
