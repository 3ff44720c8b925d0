"""Short runs of a program: what is wrong with it, and what each run would start."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from escala.command import parse
from escala.commands import flow
from escala.core import console, plugins
from escala.core.errors import InputError
from escala.core.files import read_json, read_yaml
from escala.core.hardware import available_gpus
from escala.core.variables import CALLERS_PATH
from escala.draft import answer, trial
from escala.draft import program as draft_program
from escala.engines import environments
from escala.experiment import Experiment
from escala.programs import copy as program_copy
from tests.programs import experiment_on
from tests.unit.fixtures_runs import program

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


def first(experiment: Experiment, **how: float) -> trial.Trial:
    return trial.try_once(experiment, experiment.runs[0], **how)


@pytest.mark.parametrize(
    ("source", "reasons", "remedy"),
    [
        ("import no_such_module", ["no_such_module"], "--python"),
        ("name = input('Your name? ')", ["asks for input", "Your name?"], "argument"),
        ("print('half'); raise SystemExit('bad rate')", ["exit code 1", "half | bad rate"], ""),
        ("import os; os.kill(os.getpid(), 9)", ["signal 9", "wrote nothing"], "what ends it"),
        ("import os; os.environ['WORLD_SIZE']", ["WORLD_SIZE"], "--torch"),
        ("import os; os.environ['OWN_TOKEN']", ["OWN_TOKEN"], "--variable OWN_TOKEN"),
        # A variable that it is given: no option passes it on.
        ("import os; {}['HOME']", ["KeyError: 'HOME'"], "correct what its last lines name"),
        ("print('epoch one of two')", ["epoch one of two"], "epoch_ends"),
    ],
)
def test_a_program_that_fails_is_refused_with_its_last_lines(
    source, reasons, remedy, experiment, monkeypatch
):
    monkeypatch.setenv("OWN_TOKEN", "here")
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
        ("import time; time.sleep(0.4); print('done it')", (), {},
         ["no steps", "done it", "Too short", "--epoch-ends"], "hook;"),
    ],
)  # fmt: skip
def test_what_a_program_told_is_said(
    source, arguments, further, said, unsaid, experiment, tmp_path, capsys
):
    tried = experiment(source, *arguments, **further)
    text = "\n".join(trial.report(first(tried), None, tried))
    for each in (*said, "2 runs follow"):
        assert each in text, text
    assert unsaid not in text
    assert f" in a copy of {tmp_path}\n" in capsys.readouterr().err


def test_a_program_of_which_only_another_rank_fails_is_refused(experiment):
    source = (
        "import os, time; time.sleep(0.4)\n"
        "assert os.environ['RANK'] == '0', 'this rank has no shard'"
    )
    tried = experiment(source, strategy="torch-ddp", more="1x2")
    assert first(tried).ended
    run = trial.find_largest(tried)
    assert run.layout == "1x2"
    with pytest.raises(InputError, match=r"two processes on one node: .*this rank has no shard"):
        trial.try_once(tried, run)


SLEEP = """\
import os, sys, time
print("early", flush=True)
time.sleep(float(sys.argv[int(os.environ["WORLD_SIZE"])]))
"""


@pytest.mark.parametrize(
    ("strategy", "line", "refused"),
    [
        ("torch-ddp", "Found no 2 GPUs. Exiting.", True),
        ("torch-ddp", "Found no 2 GPUs.", False),
        ("single", "Found no 2 GPUs. Exiting.", False),
    ],
)
def test_a_program_that_gives_up_is_refused(strategy, line, refused, experiment):
    tried = experiment(
        f"import time\ntime.sleep(1)\nprint({line!r})", strategy=strategy, more="1x2"
    )
    if not refused:
        assert first(tried).ended
        return
    with pytest.raises(InputError) as error:
        first(tried)
    assert line in error.value.reason


@pytest.mark.usefixtures("cold")
def test_several_processes_that_end_before_one_that_was_cut_are_told(experiment):
    tried = experiment(SLEEP, "99", "1", strategy="torch-ddp", more="1x2")
    found = first(tried, limit_seconds=5)
    several = trial.try_together(tried, trial.find_largest(tried), found)
    text = "\n".join(trial.report(found, several, tried))
    assert "Two processes on one node ended without an error after" in text
    assert "4 runs follow" in text and "If they take as long as these" not in text


def test_several_processes_that_wait_for_each_other_are_refused(experiment):
    tried = experiment(SLEEP, "0.4", "99", strategy="torch-ddp", more="1x2")
    with pytest.raises(InputError, match=r"two processes.* did not end within.*: early.*wait"):
        trial.try_together(tried, trial.find_largest(tried), first(tried), limit_seconds=2)


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
        trial.try_together(tried, trial.find_largest(tried), first(tried))


def test_steps_that_pytorch_cannot_trace_are_told_before_they_are_measured(experiment):
    told = first(experiment("from escala_steps import steps\nfor _ in steps(range(9)): pass"))
    assert "torch" not in told.result["versions"] and "PyTorch" in trial.why_untraced(told)
    assert trial.why_untraced(replace(told, result={"versions": {"torch": "2"}})) is None
    assert "hook" in trial.why_untraced(replace(told, known_by="output"))


def test_a_program_that_takes_long_is_ended_and_that_is_no_error(experiment):
    tried = experiment(EPOCHS, "{epochs}", "2", epochs=100)
    found = first(tried, limit_seconds=3)
    assert (found.ended, found.seconds) == (False, 3)
    text = "\n".join(trial.report(found, None, tried))
    assert "no error" in text and "at least 6 s" in text
    assert "known by its hook" in text


def test_a_pattern_that_has_matched_nothing_yet_is_said(experiment):
    """The runs search for it: whole runs are not compared, and another pattern helps nothing."""
    tried = experiment("", epoch_ends="epoch")
    found = made(tried.runs[0], ended=False, known_by="whole run", epoch_seconds=None)
    text = "\n".join(trial.report(found, None, tried))
    assert "matches its pattern so far" in text and "whole runs" not in text


def test_what_would_start_is_shown_and_nothing_is_started(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv(CALLERS_PATH, "/of/the/caller")
    source = "open('started', 'w')"
    tried = experiment(source, "{rank}", "{rows_of_rank}", strategy="torch-ddp",
                       batch={"rows": 64, "per": "global"})  # fmt: skip
    first, *lines = trial.describe_starts(tried)
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


PLACES = """import pathlib, torch_or_not as torch
BEST, SPARE, HOME = "/nonexistent/best.pt", "{there}/best.pt", "~/models"
torch.save(BEST, "../above.pt"), open("inside.pt", "/dev/null")
pathlib.Path.home()
"""


def test_what_a_program_could_change_is_named_before_it_starts(experiment, tmp_path, monkeypatch):
    other = tmp_path.parent / "other"
    other.mkdir()
    (tmp_path / "data").symlink_to(other)
    words = (f"--out={other}/out", f"{tmp_path}/inside")
    tried = experiment(PLACES.format(there=tmp_path), *words)
    monkeypatch.setattr(program_copy, "MOST_LINKS", sys.maxsize)
    first, second = trial.describe_isolation(tried)
    assert str(tmp_path) in first and "{output}" in first
    named = set(re.findall(r"[:,] ([^ ,]+) \(", second))
    script = {"~", "~/models", "../above.pt", f"{tmp_path}/best.pt"}
    assert named == {f"{other}/out", f"{tmp_path}/data", *script}, second
    assert "train.py, line 2" in second
    monkeypatch.setattr(program_copy, "MOST_LINKS", 0)
    _, nowhere, again = trial.describe_isolation(tried)
    assert "../above.pt (" in nowhere and again == second


def test_the_answer_is_the_first_lines_of_the_summary(tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text(
        "# Title\n\n**Yes: 0.6.** ([ratios](tables/r.csv), [f](figures/f.svg))\n\n- Of seven.\n\n"
        "## Why\n\n- Because.\n"
    )
    assert answer.read_sentences(summary) == ["Yes: 0.6.", "- Of seven."]


#: Trains alone, whatever the variables say.
ALONE = "import time\nfor number in range(3): time.sleep(0.3); print('epoch', number)"
#: Starts two ranks itself, as a launcher that is not known does.
NESTED = """
import os, subprocess, sys
ranks = [
    subprocess.Popen(["sleep", "1.5"], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"})
    for rank in (0, 1)
]
sys.exit(max(each.wait() for each in ranks))
"""
EXITS = "import json; print('needs 2 GPUs. Exiting.')"


@pytest.mark.parametrize(
    ("source", "strategy", "reasons"),
    [
        (ALONE, "torch-ddp", ["none of the 2 processes asked which", "epoch 2"]),
        (NESTED, "single", ["was to be one process, and starts 2 ranks", "--launcher"]),
        (ALONE, "own-launcher", ["asked for 2 ranks, and 1 of its processes worked"]),
        (
            EXITS,
            "single",
            ["too short to be timed", "give it more to do", "needs 2 GPUs. Exiting."],
        ),
    ],
)
def test_what_would_be_measured_wrongly_is_refused_before_the_runs(
    source, strategy, reasons, experiment
):
    tried = experiment(source, strategy=strategy, more="1x2")
    with pytest.raises(InputError) as refused:
        trial.try_together(tried, trial.find_largest(tried), first(tried))
    for each in reasons:
        assert each in str(refused.value), refused.value


def test_what_a_trial_found_is_said(experiment):
    source = "import os\nos.environ['RANK']\n" + EPOCHS
    tried = experiment(source, "{epochs}", "0.2", epochs=2, strategy="torch-ddp", more="1x2")
    found = first(tried)
    several = trial.try_together(tried, trial.find_largest(tried), found)
    one, two, same = list(trial.report(found, several, tried))[:3]
    for number, text in (("1", one), ("2", two)):
        assert re.search(rf"at work: {number}\b.*epochs: 2; steps of one: 4;.*: loss 1;", text)
        assert re.search(r"silence: \d", text)
    # Each makes all steps.
    assert "Together the 2 take 2.0 times the steps of an epoch of one" in same


def made(run, **known: object) -> trial.Trial:
    """Return the trial of a run of three epochs of 2 s, after a start of 4 s, or as is known."""
    ran = {"processes": 1, "cores": 1.0, "ranks": None, "core_seconds": 6.0}
    ran |= {"silent_seconds": 1.0, "start_seconds": 0.5}
    usual = {
        "seconds": 10.0, "ended": True, "known_by": "output", "epoch_seconds": 2.0, "epochs": 3,
        "last": "end", "whole_seconds": 10.0, "ran": ran,
    }  # fmt: skip
    return trial.Trial(run, **usual | known)


def test_steps_tell_whether_ranks_divide_their_rows(experiment):
    tried = experiment(EPOCHS, strategy="torch-ddp", more="1x2")
    runs = trial.first_run(tried), trial.find_largest(tried)
    named, unnamed = frozenset(["rows_of_rank"]), frozenset()
    for known, steps, divides in (
        (named, 24, True), (named, 48, False), (unnamed, 12, True), (unnamed, 24, False)
    ):  # fmt: skip
        alone, several = (
            made(run, steps=number, placeholders=known)
            for run, number in zip(runs, (24, steps), strict=True)
        )
        assert bool([*trial._compare(alone, several)]) != divides


@pytest.mark.parametrize(
    ("known", "least", "most"),
    [
        ({}, 20, 20),
        # Two epochs more, each of 2 s.
        ({"epochs": 1}, 28, 28),
        # It was ended: nothing is known, or how many of three epochs it made.
        ({"ended": False}, 20, 7200),
        ({"ended": False, "epochs": 1, "placeholders": frozenset(["epochs"])}, 60, 60),
        # It made two of three epochs, of which nothing tells; its start took half a second.
        ({"epochs": 2, "epoch_seconds": None, "placeholders": frozenset(["epochs"])}, 29.5, 29.5),
        # A run ends at its limit.
        ({"epochs": 1, "epoch_seconds": 9000.0}, 7200, 7200),
    ],
)
def test_the_time_of_all_runs_is_estimated(known, least, most, experiment):
    tried = experiment("", epochs=3)
    found = made(tried.runs[0], **known)
    assert trial.estimate(found, None, tried) == pytest.approx((least, most))
    *_, last = trial.report(found, None, tried)
    assert ("time_limit_minutes" in last) == (most == 7200), last


@pytest.mark.parametrize(
    ("ended", "window", "may_be_seen"), [(True, 2, False), (False, 0, False), (False, 2, True)]
)
def test_steps_may_be_seen_after_a_trial_was_cut(ended, window, may_be_seen, experiment):
    tried = experiment("", window=window)
    whole = made(tried.runs[0], ended=ended, known_by="whole run")
    [line] = [line for line in trial.report(whole, None, tried) if "no steps" in line]
    assert ("if they are seen later" in line.lower()) == may_be_seen


@pytest.mark.parametrize(
    ("minutes", "least", "most"), [(None, 50, 300), (1, 50, 70), (0.25, 25, 25), (2, 50, 130)]
)
def test_a_session_that_decides_takes_its_minutes_and_a_repeat_at_most(
    minutes, least, most, experiment
):
    tried = experiment("", epochs=3)
    tried.settings["repeats"] = {"decide": True, "at_most": 30, "minutes": minutes}
    assert trial.estimate(made(tried.runs[0]), None, tried) == pytest.approx((least, most))


@pytest.mark.parametrize(
    ("alone", "several", "said"),
    [
        ({"rows": 100}, {"rows": 200}, "2.0 times the rows of an epoch"),
        ({"rows": 100}, {"rows": 100}, None),
        ({"steps": 10}, {"steps": 5}, None),
        ({"steps": 10}, {"steps": 10, "placeholders": frozenset(["rows_of_rank"])}, None),
        ({}, {"cores": 12.0}, "2.0 times the core time"),
        ({}, {"cores": 6.5}, None),
        ({"cores": 0.3}, {"cores": 0.6}, None),
    ],
)
def test_work_that_is_done_twice_or_not_at_all_is_said(alone, several, said, experiment):
    tried = experiment("", strategy="torch-ddp", more="1x2")
    found = []
    for run, known in zip(tried.runs[:2], (alone, several), strict=True):
        each = made(run, **{key: value for key, value in known.items() if key != "cores"})
        each.ran["core_seconds"] = known.get("cores", 6.0)
        found.append(each)
    text = "\n".join(trial.report(*found, tried))
    if said:
        assert said in text
    else:
        assert "Together" not in text and "master" not in text


def test_one_process_that_waits_for_others_is_refused(experiment):
    source = "import os, time; time.sleep(0.3 if os.environ['WORLD_SIZE'] == '2' else 99)"
    tried = experiment(source, strategy="torch-ddp", more="1x2")
    waits = made(tried.runs[0], ended=False, seconds=60.0)
    with pytest.raises(InputError, match=r"one process did not end within 1 min 0 s.*master"):
        trial.try_together(tried, trial.find_largest(tried), waits)


#: May join a group, as its words tell.
GUESSED = "def join():\n    import torch\n    torch.distributed.init_process_group('gloo')"


def _arguments(*options: str) -> argparse.Namespace:
    return parse(["try", *options, "--processes", "2", "--", sys.executable, "train.py"])[1]


@pytest.mark.parametrize("source", ["", GUESSED])
def test_runs_of_many_minutes_are_not_begun_without_a_word(source, tmp_path, monkeypatch, capsys):
    command = importlib.import_module("escala.commands.try")
    (tmp_path / "train.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    monkeypatch.setattr("escala.draft.program.available_cores", lambda: [0, 1])
    monkeypatch.setattr(
        trial, "try_once", lambda e, run, *_: made(run, whole_seconds=1000.0, result={})
    )
    monkeypatch.setattr(flow, "_measure", lambda *_: pytest.fail("it measures"))
    assert command.run(_arguments()) == console.NO_TIME
    said = capsys.readouterr().err
    assert "At most 30 repeats follow" in said and "Nothing is measured yet" in said
    assert re.search(r"escala run --experiment escala-train\.yaml$", said, re.MULTILINE)
    assert (tmp_path / "escala-train.yaml").is_file() and not (tmp_path / "results").exists()


def test_a_script_whose_strategy_is_guessed_is_tried_as_it_is_typed_too(tmp_path, monkeypatch):
    command = importlib.import_module("escala.commands.try")
    (tmp_path / "train.py").write_text("import torch\nif 0: torch.distributed.init_process_group()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    monkeypatch.setattr("escala.draft.program.available_cores", lambda: [0, 1])
    names, words = [], []

    def tried(typed, guess, *_):
        names.extend([*typed.settings["workloads"], *guess.settings["workloads"]])
        return made(typed.runs[0]), None, InputError("command", None, "it needs CUDA", "use cpu")

    monkeypatch.setattr(trial, "try_as_typed", tried)
    monkeypatch.setattr(flow, "call_escala", lambda *given, **_: words.extend(given) or 1)
    assert command.run(_arguments("--again")) == 1
    assert names == ["train", "train"] and "--again" in words
    assert "strategy: single" in (tmp_path / "escala-train.yaml").read_text()


@pytest.mark.parametrize(("period", "window"), [(0.0, 2), (0.5, 2), (1.2, 4), (7.0, 21)])
def test_a_window_is_long_enough_for_what_recurs(period, window, tmp_path, monkeypatch, capsys):
    command = importlib.import_module("escala.commands.try")
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    monkeypatch.setattr("escala.draft.program.available_cores", lambda: [0, 1])
    monkeypatch.setattr(
        trial, "try_once", lambda e, run, *_: made(run, window_steps=9, steps=9, period=period)
    )
    monkeypatch.setattr(flow, "_measure", lambda *_: 1)
    assert command.run(_arguments()) == 1
    assert f"window: {window}\n" in (tmp_path / "escala-train.yaml").read_text()
    assert f"Each run ends after {window} s of steady steps" in capsys.readouterr().err


@pytest.mark.parametrize("epochs", [2, 100])
def test_a_window_goes_only_if_a_trial_made_all_epochs(epochs, tmp_path, monkeypatch, capsys):
    """Two epochs end within 5 s, of which half a second is the start: 50 times two do not."""
    command = importlib.import_module("escala.commands.try")
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    monkeypatch.setattr("escala.draft.program.available_cores", lambda: [0, 1])
    known = {
        "seconds": 5.0, "whole_seconds": 5.0, "known_by": "whole run", "epoch_seconds": None,
        "epochs": 2, "placeholders": frozenset(["epochs"]), "patterns": {"step_ends": "step"},
    }  # fmt: skip
    estimates, estimate = [], trial.estimate
    monkeypatch.setattr(trial, "try_once", lambda e, run, *_: made(run, **known))
    monkeypatch.setattr(
        trial, "estimate", lambda *of: estimates.append(estimate(*of)) or estimates[-1]
    )
    monkeypatch.setattr(flow, "_measure", lambda *_: 1)
    words = ["--epochs", str(epochs), "--repeats", "10", "--processes", "2", "--"]
    code = command.run(parse(["try", *words, sys.executable, "train.py", "{epochs}"])[1])
    has_window = epochs > 2
    # The window may end a run, and nothing tells that it will.
    assert estimates[-1] == pytest.approx((20 * 5.0, 20 * (5.0 + (epochs - 2) / 2 * 4.5)))
    assert code == (console.NO_TIME if has_window else 1)
    assert ("window: " in (tmp_path / "escala-train.yaml").read_text()) == has_window
    assert ("of steady steps" in capsys.readouterr().err) == has_window


@pytest.mark.parametrize(
    ("faults", "waits", "workers", "variants"),
    [
        (9.0, None, 0, []),
        (90_000.0, None, 0, ["memory"]),
        (9.0, 0.02, 0, ["loader"]),
        (9.0, 0.02, 1, []),
        (90_000.0, 0.02, 0, ["memory", "loader"]),
    ],
)
def test_apply_adds_what_the_trial_suggests(
    faults, waits, workers, variants, tmp_path, monkeypatch, capsys
):
    """A step of 0.1 s takes as much core time, a fifth of it in the kernel."""
    command = importlib.import_module("escala.commands.try")
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    monkeypatch.setattr("escala.draft.program.available_cores", lambda: [0, 1])
    used = {"input_seconds": waits, "core_seconds": 0.1, "kernel_seconds": 0.02}
    used |= {"step_seconds": 0.1, "minor_faults": faults, "workers": workers}
    result = read_json(program(tmp_path).runs[0])
    result["program"]["mean_steps"] = [used]
    monkeypatch.setattr(
        trial, "try_once", lambda e, run, *_: made(run, result=result, window_steps=9, steps=9)
    )
    monkeypatch.setattr(flow, "_measure", lambda *_: 1)
    arguments = _arguments("--apply", "--torch")
    assert command.run(arguments) == 1
    text = capsys.readouterr().err
    assert ("--apply adds nothing" in text) == (faults < 1e4 and not waits)
    assert ("Its loader has workers" in text) == (workers > 0)
    experiment = Experiment(read_yaml(tmp_path / "escala-train.yaml"), "escala-train.yaml")
    added = {run.variant: run for run in experiment.runs if run.variant in ("memory", "loader")}
    assert [*added] == variants
    programs = {name: experiment.request(run)["start"]["program"] for name, run in added.items()}
    if "memory" in programs:
        assert "MALLOC_ARENA_MAX=1" in programs["memory"]["lines"][-1]
        compared = [each.layout for each in experiment.references_of(added["memory"])]
        assert compared == ["1x1", "1x1", "1x2"]
    if "loader" in programs:
        assert programs["loader"]["lines"] == ["export ESCALA_LOADER_WORKERS=1"]
        assert added["loader"].cores == 2
    # The same call goes on, and a call for something else does not replace the file.
    assert command.run(arguments) == 1
    if variants:
        with pytest.raises(InputError, match="differs from what these options give"):
            command.run(_arguments("--torch"))


def test_a_long_program_is_refused_for_what_it_does_until_it_is_ended(experiment):
    tried = experiment(NESTED.replace("1.5", "99"))
    with pytest.raises(InputError, match="starts 2 ranks itself"):
        first(tried, limit_seconds=4)


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        # It works in any way.
        ("print(os.environ.get('RANK'), flush=True)", None),
        # It needs what the guess gives it.
        ("assert os.environ['RANK'] >= '0'", None),
        # It takes another way, and fails there: with one process, or with several.
        ("assert 'RANK' not in os.environ, 'needs CUDA'", "needs CUDA"),
    ],
)
def test_a_command_is_tried_as_typed_before_what_its_script_is_guessed_to_need(
    source, refused, experiment
):
    source = f"import os, time; time.sleep(0.5); {source}"
    typed = experiment(source)
    guess = experiment(source, strategy="torch-ddp", more="1x2")
    found, several, why = trial.try_as_typed(typed, guess, limit_seconds=3)
    assert found.ended and found.run.strategy == ("single" if refused else "torch-ddp")
    assert (why is None) is (refused is None) is (several is not None)
    assert refused is None or refused in why.reason


def test_what_fails_as_typed_and_as_guessed_is_refused(experiment):
    source = "raise SystemExit('no data')"
    with pytest.raises(InputError, match="no data"):
        trial.try_as_typed(experiment(source), experiment(source, strategy="torch-ddp"))


#: A launcher as it is installed: it starts as many ranks as one of its options says.
LAUNCHER = """\
#!{python}
import os, subprocess, sys
words = sys.argv[1:]
script = next(place for place, word in enumerate(words) if word.endswith(".py"))
ranks = int(words[words.index("--num_processes") + 1])
places = [{{"RANK": str(rank), "WORLD_SIZE": str(ranks)}} for rank in range(ranks)]
started = [subprocess.Popen([sys.executable, *words[script:]], env=os.environ | p) for p in places]
sys.exit(max(process.wait() for process in started))
"""


# The kernel shows the variables of a fork's server, and not those of the fork.
@pytest.mark.usefixtures("cold")
def test_a_launcher_starts_as_many_ranks_as_each_configuration_has(tmp_path, monkeypatch):
    """`tests/unit/test_draft.py` has the options of other launchers."""
    words = ["env", "A=1", "nice", "accelerate", "launch", "--cpu", "--num_processes", "2"]
    program = tmp_path / "bin" / "accelerate"
    program.parent.mkdir()
    program.write_text(LAUNCHER.format(python=sys.executable))
    program.chmod(0o755)
    source = "import os, time; end = time.time() + 2\nwhile time.time() < end: pass\n"
    source += "os.write(1, os.environ['HF_HUB_OFFLINE'].encode() + b'\\n')"
    (tmp_path / "train.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    monkeypatch.setenv(CALLERS_PATH, f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HF_HUB_OFFLINE", "yes")
    monkeypatch.setattr("escala.draft.program.available_cores", lambda: [0, 1])
    options = parse(["try", "--processes", "2", "--", *words, "train.py"])[1]
    drafted = draft_program.draft([*words, "train.py"], options)
    experiment = _with_cores(Experiment(drafted.settings, "escala-train.yaml"))
    alone, several, _ = trial.try_as_typed(None, experiment)
    assert (alone.ran["ranks"], several.ran["ranks"]) == (1, 2)
    assert {alone.last, several.last} == {"yes", "yes | yes"}, "variables of the shell arrive"


NCCL = """
import torch
import helper
torch.distributed.init_process_group(helper.BACKEND)
"""
CUDA = """
import torch
torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(2, 2).cuda()
"""
#: What the first of them does, without the time to import PyTorch.
AS_NCCL = """
import helper
if helper.BACKEND == "nccl":
    raise ValueError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
"""
BACKEND = ("import os\n\nBACKEND = 'nccl'", "nccl", "gloo", "helper.py, line 3")
REAL = [pytest.mark.torch, pytest.mark.sweep]


@pytest.mark.parametrize(
    ("source", "helper", "word", "other", "where"),
    [
        (AS_NCCL, *BACKEND),
        pytest.param(NCCL, *BACKEND, marks=REAL),
        pytest.param(CUDA, "", "cuda", "cpu", "train.py, line 4", marks=REAL),
    ],
)
def test_a_script_that_asks_for_gpus_is_told_the_word_to_change(
    source, helper, word, other, where, experiment, tmp_path
):
    if available_gpus():
        pytest.skip("there is a GPU; this is of machines without one")
    (tmp_path / "helper.py").write_text(helper)
    python = sys.executable if source == AS_NCCL else environments.python("torch")
    asks = experiment(source, strategy="torch-ddp", more="1x2", environment={"python": python})
    with pytest.raises(InputError) as refused:
        first(asks)
    assert where in refused.value.remedy and where not in refused.value.reason
    # What the remedy says helps.
    changed = tmp_path / where.partition(",")[0]
    changed.write_text(
        changed.read_text().replace(f".{word}()", f".{other}()").replace(word, other)
    )
    source = (tmp_path / "train.py").read_text() + "import time; time.sleep(1)"
    assert first(
        experiment(source, strategy="torch-ddp", more="1x2", environment={"python": python})
    ).ended


#: Rank 0 hands out work and makes none; the others do it. Alone it fails, waits, or does nothing.
MASTER = """\
import os, pathlib, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
shared = pathlib.Path(sys.argv[1])
if world == 1:
    {alone}
if rank:
    end = time.time() + 4 / (world - 1)
    while time.time() < end: pass
    (shared / f"{{world}}-{{rank}}").touch()
else:
    while not all((shared / f"{{world}}-{{n}}").exists() for n in range(1, world)):
        time.sleep(0.02)
print("end", flush=True)
"""


@pytest.mark.parametrize(
    "alone",
    [
        "sys.exit('it needs at least 2 processes')",
        pytest.param("time.sleep(99)", marks=pytest.mark.sweep),
        pytest.param("time.sleep(1)", marks=pytest.mark.sweep),
    ],
)
def test_the_fewest_processes_that_work_are_the_base(alone, tmp_path, monkeypatch, capsys):
    command = importlib.import_module("escala.commands.try")
    (tmp_path / "mine").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "mine" / "train.py").write_text(MASTER.format(alone=alone))
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    for module in ("program", "trial"):
        monkeypatch.setattr(f"escala.draft.{module}.available_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr("escala.draft.program.hardware_threads", lambda core: [core])
    monkeypatch.setattr(trial, "PATIENCE", 1.1)
    once = trial.try_once
    limit = 9.0 if "99" in alone else 60.0
    monkeypatch.setattr(trial, "try_once", lambda e, run, *_: once(_with_cores(e), run, limit))
    monkeypatch.setattr(flow, "_measure", lambda *_: 1)
    words = [sys.executable, "train.py", str(tmp_path / "shared")]
    assert command.run(parse(["try", "--torch", "--processes", "3", "--", *words])[1]) == 1
    drafted = Experiment(yaml.safe_load(Path("escala-train.yaml").read_text()), "e.yaml")
    configurations = {run.configuration[:3] for run in drafted.runs}
    assert {layout for _, layout, _ in configurations} == {"1x2", "1x3"}
    assert {each["layout"] for each in drafted.settings["references"]} == {"1x2"}
    assert "--baseline 2" in capsys.readouterr().err


def _with_cores(experiment: Experiment) -> Experiment:
    return Experiment(experiment.settings | {"oversubscribe": True}, "e.yaml")


def test_a_base_of_several_needs_processes_that_find_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("escala.draft.program.available_cores", lambda: [0, 1])
    for options, remedy in (([], "--torch"), (["--torch"], "more cores")):
        words = ["try", "--baseline", "2", *options, "--", sys.executable, "train.py"]
        with pytest.raises(InputError) as refused:
            draft_program.draft(words[-2:], parse(words)[1])
        assert remedy in refused.value.remedy


def test_the_variables_that_a_program_finds_are_named(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "shell.json").write_text(json.dumps(dict(os.environ)))
    source = (
        "import json, os, time; time.sleep(0.6)\nshell = json.load(open('shell.json'))\n"
        "print(*(name for name in os.environ if os.environ[name] != shell.get(name)), flush=True)\n"
        "assert os.environ['HF_HUB_OFFLINE'] == '1'"
    )
    tried = experiment(source, strategy="torch-ddp", more="1x2")
    sentence = trial.describe_variables(tried)
    differing = set(first(tried).last.split()) - {"PWD", "LC_CTYPE"}
    assert {"RANK", "MASTER_PORT", "OMP_NUM_THREADS"} <= differing
    assert differing <= set(re.findall(r"\w+", sentence)), differing
    assert "HF_HUB_OFFLINE" not in sentence
