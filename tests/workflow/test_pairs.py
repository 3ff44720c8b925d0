"""Two commands, and two commits, measured in turns by real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from jsonschema import Draft202012Validator

from escala.analysis.looks import LOOK_LEVEL
from escala.command import parse
from escala.commands import guard
from escala.core import console
from escala.core.errors import InputError, Unavailable
from escala.core.files import read_json, read_schema
from escala.draft import pair
from tests.programs import eventually

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = Draft202012Validator(read_schema(ROOT / "schemas" / "answer.schema.yaml"))

TRAIN = """\
import time
from escala_steps import epoch, steps
import model
for number in range(3):
    for batch in steps(range(4)):
        model.step()
    epoch(loss=1.0)
"""
STEP = "import time\ndef step(): time.sleep({})\n"


def call(*words: str, folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "escala.command", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    command = ["git", *author, *words]
    return subprocess.check_output(command, cwd=folder, text=True).strip()


@pytest.fixture
def repository(tmp_path) -> Path:
    """A repository of which the tag `slow` takes 1.5 times a step of the tag `quick`."""
    git(tmp_path, "init", "--quiet")
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(TRAIN)
    for tag, seconds in (("quick", 0.04), ("slow", 0.06)):
        (work / "model.py").write_text(STEP.format(seconds))
        git(tmp_path, "add", "work")
        git(tmp_path, "commit", "--quiet", "-m", tag)
        git(tmp_path, "tag", tag)
    # A change that nobody committed: with it no run would end well.
    (work / "model.py").write_text("raise SystemExit(9)\n")
    return work


def trees(folder: Path) -> list[str]:
    return git(folder, "worktree", "list").splitlines()


def test_a_slower_commit_is_found_and_the_work_tree_stays_as_it_is(repository):
    done = call("guard", "quick", "slow", "--repeats", "6", "--json", "a.json", "--markdown",
                "a.md", "--", "python", "train.py", folder=repository)  # fmt: skip
    content = read_json(repository / "a.json")
    SCHEMA.validate(content)
    base, head = content["configurations"]
    [compared] = content["comparisons"]
    assert [base["variant"], head["variant"]] == ["base", "head"]
    assert [base["runs"], head["runs"]] == [6, 6]
    assert [base["known_by"], head["known_by"]] == ["hook", "hook"]
    assert head["seconds"] / base["seconds"] == pytest.approx(1.5, rel=0.2)
    assert compared["ratio"] == pytest.approx(1.5, rel=0.2)
    low, high = compared["interval_of_session"]
    assert low < compared["ratio_of_session"] < high < 2
    # On a disturbed machine there is no verdict. One pair of six that goes wrong costs the verdict.
    verdict = compared["verdict_of_session"]
    assert verdict in (
        ("slower", "no verdict") if low > 1.05 else ("not distinguishable", "no verdict")
    )
    expected = guard.SLOWER if verdict == "slower" else guard.UNDECIDED
    assert content["guard"]["outcome"] == expected
    assert done.returncode == guard.CODES[expected], done.stderr
    assert content["guard"]["commits"]["head"] == git(repository, "rev-parse", "slow")
    assert content["sentences"][0] in (repository / "a.md").read_text()
    assert content["sentences"][0] in done.stdout
    assert len(trees(repository)) == 1
    assert git(repository, "status", "--porcelain", "--untracked-files=no") == "M work/model.py"
    # The same call measures nothing again.
    again = call("guard", "quick", "slow", "--repeats", "6", "--json", "b.json", "--",
                 "python", "train.py", folder=repository)  # fmt: skip
    assert again.returncode == done.returncode
    assert read_json(repository / "b.json")["comparisons"] == content["comparisons"]


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("place", ["package", "script"])
def test_what_is_measured_is_code_of_the_commits_only(place, repository):
    """A package of the user's own tree, or a script named by its path, would run on both sides."""
    git(repository, "checkout", "--quiet", "--", "model.py")
    (repository / "train.py").write_text("import sys; sys.path.insert(0, sys.argv[1])\n" + TRAIN)
    git(repository, "commit", "--quiet", "-am", "other path")
    script = "train.py" if place == "package" else str(repository / "train.py")
    words = "python", script, str(repository)
    done = call("guard", "HEAD", "HEAD", "--", *words, folder=repository)
    assert done.returncode == console.WRONG
    assert ("model.py" if place == "package" else "train.py") in done.stderr
    assert "both commits run the same code" in done.stderr
    assert len(trees(repository)) == 1 and not (repository / "results").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["quick"], "does not name two commits"),
        (["quick", "none-such"], "has no commit none-such"),
        (["quick", "slow", "--json", "no/folder/a.json"], "--json"),
        (["quick", "slow", "--json", "."], "--json: '.': is a folder"),
        (["quick", "slow", "--markdown", ".."], "--markdown: '..': is a folder"),
        (["quick", "slow", "--threshold", "often"], "is not a percentage"),
    ],
)
def test_a_call_that_names_nothing_to_measure_is_refused(words, reason, repository):
    done = call("guard", *words, "--", "python", "train.py", folder=repository)
    assert done.returncode == console.WRONG and reason in done.stderr
    assert len(trees(repository)) == 1 and not (repository / "results").exists()


@pytest.mark.parametrize("names", [("quick", "HEAD"), ("HEAD", "quick")])
def test_a_commit_without_the_folder_of_the_call_is_named(names, repository):
    place = repository / "new"
    place.mkdir()
    (place / "train.py").write_text(TRAIN)
    git(repository, "add", "new")
    git(repository, "commit", "--quiet", "-m", "a folder")
    done = call("guard", *names, "--", "python", "train.py", folder=place)
    assert done.returncode == console.WRONG
    assert "the commit: 'quick': has no folder work/new." in done.stderr
    assert len(trees(repository)) == 1


def test_a_repository_of_another_user_is_told_with_how_to_trust_it(repository, monkeypatch):
    for name in ("GIT_TEST_ASSUME_DIFFERENT_OWNER", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.chdir(repository)
    with pytest.raises(InputError, match=r"git config .* safe\.directory") as refused:
        guard.git(Path(), "rev-parse", "--show-toplevel", refused="is in no git repository")
    assert str(repository.parent) in refused.value.remedy
    assert "is in no git repository" not in refused.value.reason


def test_why_a_folder_is_in_no_repository_is_in_the_words_of_git(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none-such"))
    with pytest.raises(InputError, match=r"is in no git repository: .*none-such"):
        guard.git(tmp_path, "rev-parse", "--show-toplevel", refused="is in no git repository")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_work_tree_stays_after_a_signal(number, repository):
    command = [sys.executable, "-m", "escala.command", "guard", "quick", "slow", "--", "python"]
    process = subprocess.Popen(
        [*command, "train.py"], cwd=repository, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    with process.stderr as lines:
        assert any("done" in line for line in lines), "a trial has ended"
        assert len(trees(repository)) == 3
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        lines.read()
        assert process.wait(60) == console.SIGNALLED + number
    assert eventually(lambda: len(trees(repository)) == 1)


def test_an_error_of_the_measurement_is_no_slower_commit(repository, monkeypatch, capsys):
    _, arguments = parse(["guard", "quick", "slow", "--", "python", "train.py"])
    monkeypatch.chdir(repository)
    for error in (OSError("disk full"), Unavailable("no compiler")):
        monkeypatch.setattr(guard.flow, "begin", Mock(side_effect=error))
        assert guard.run(arguments) == console.UNDECIDED
        drafted, *_ = guard.flow.begin.call_args.args
        assert drafted.settings["repeats"]["threshold"] == arguments.threshold == 0.05
        assert str(error) in capsys.readouterr().err
        assert len(trees(repository)) == 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (console.FAILED, console.UNDECIDED),
        (console.NO_TIME, console.UNDECIDED),
        (console.SIGNALLED + signal.SIGINT, console.SIGNALLED + signal.SIGINT),
    ],
)
def test_a_measurement_without_an_answer_decides_nothing(code, expected, repository, monkeypatch):
    _, arguments = parse(["guard", "quick", "slow", "--", "python", "train.py"])
    monkeypatch.chdir(repository)
    monkeypatch.setattr(guard.trial, "try_pair", Mock(return_value=[]))
    monkeypatch.setattr(guard.flow, "measure", Mock(return_value=(code, None)))
    assert guard.run(arguments) == expected
    assert len(trees(repository)) == 1


@pytest.mark.parametrize(("level", "words"), [(0.95, "95 %"), (LOOK_LEVEL, "98.4 %")])
def test_the_sentence_states_the_level_of_the_interval(level, words):
    compared = {"ratio_of_session": 1.3, "interval_of_session": [1.2, 1.4], "paired_runs": 7}
    text = pair.describe(
        compared | {"level": level, "verdict_of_session": "slower"}, "It is slower"
    )
    assert f"1.300 of its time (7 paired runs, {words} interval 1.200 to 1.400)" in text


@pytest.mark.parametrize("forge", ["github", "gitlab"])
def test_the_job_of_a_forge_calls_guard(forge, tmp_path):
    """It is YAML, and its call is one that the command takes."""
    done = call("guard", "--ci", forge, folder=tmp_path)
    job = yaml.safe_load(done.stdout)
    scripts = [step.get("run", "") for step in job["jobs"]["guard"]["steps"]] if (
        forge == "github"
    ) else job["guard"]["script"]  # fmt: skip
    [script] = [text for text in scripts if "escala guard" in text]
    text = re.sub(r"\$\{\{.*?\}\}", "REF", script).partition("escala guard")[2]
    words = text.replace("\\\n", " ").partition("||")[0].split()
    _, arguments = parse(["guard", *words])
    assert arguments.yes and arguments.json and arguments.markdown
    assert arguments.extra[:2] == ["python", "train.py"]


@pytest.mark.sweep
@pytest.mark.all_cores
def test_a_sweep_measures_each_value_with_the_same_configurations(tmp_path):
    """Two processes wait for each other, and divide rows that take a while."""
    source = TRAIN.replace("import model", "import sys\nrows, ranks = map(int, sys.argv[1:3])")
    wait = "time.sleep(0.005 * rows / ranks + 0.05 * (ranks > 1))"
    (tmp_path / "train.py").write_text(source.replace("model.step()", wait))
    done = call("try", "--sweep", "rows=4,40", "--repeats", "2", "--processes", "2", "--json",
                "a.json", "--", "python", "train.py", "{rows}", "{ranks}", "{rank}",
                folder=tmp_path)  # fmt: skip
    assert done.returncode == console.DONE, done.stderr
    content = read_json(tmp_path / "a.json")
    SCHEMA.validate(content)
    few, many = content["sweep"]
    assert (few["value"], many["value"]) == (4, 40)
    ratios = [
        {each["reference"]["variant"]: each["ratio"] for each in row["comparisons"]}
        for row in (few, many)
    ]
    assert ratios[0]["tuned"] == pytest.approx(60 / 20, rel=0.25)
    assert ratios[1]["tuned"] == pytest.approx(150 / 200, rel=0.25)
    assert {*ratios[0]} == {*ratios[1]} == {"tuned", "threads"}
    # Two repeats decide nothing.
    assert content["sentences"][0] in done.stdout
    assert "not decided at 4, 40 rows" in content["sentences"][0]


def test_two_commands_are_compared_from_python(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN.replace("model.step()", "time.sleep(0.04 * n)"))
    text = (tmp_path / "train.py").read_text().replace("import model", "import sys")
    (tmp_path / "train.py").write_text(text.replace(" * n", " * float(sys.argv[1])"))
    source = (
        "import escala, json\n"
        "a, b = (['python', 'train.py', word] for word in ('1', '2'))\n"
        "answer = escala.compare(a, b, repeats=2, name='mine')\n"
        "open('answer.json', 'w').write(json.dumps(answer))\n"
    )
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, check=True, timeout=300)
    content = json.loads((tmp_path / "answer.json").read_text())
    SCHEMA.validate(content)
    [compared] = content["comparisons"]
    assert compared["ratio"] == pytest.approx(2, rel=0.25)
    assert [compared[side]["variant"] for side in ("configuration", "reference")] == ["b", "a"]
    verdicts = compared["verdict"], compared["verdict_of_session"]
    assert (compared["paired_runs"], *verdicts) == (2, "no verdict", "no verdict")
    # The file stays, and gives the same runs.
    settings = yaml.safe_load((tmp_path / content["files"]["experiment"]).read_text())
    assert settings["variants"]["b"]["command"] == "python train.py 2"
    assert (tmp_path / content["files"]["page"]).is_file()
