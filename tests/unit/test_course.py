"""The course: its pages, its experiments, and the arithmetic of its solutions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from escala.experiment import load
from escala.report.tables.base import dtypes
from tests.conftest import ROOT

COURSE = ROOT / "docs" / "course"
EXERCISES = sorted(COURSE.glob("[0-9]-*.md"))
SOLUTIONS = [COURSE / "solutions" / path.name for path in EXERCISES]
EXPERIMENTS = sorted((ROOT / "experiments" / "course").glob("*.yaml"))
#: The strategy of PyTorch that stands in the place of one of TensorFlow.
IN_PYTORCH = {"single": "torch-single", "horovod-mpi": "ddp-gloo", "hybrid": "ddp-hybrid",
              "timeline": "torch-trace"}  # fmt: skip
#: In exercise 3, what makes rows cheap, or their time even, differs by the engine.
OWN_KNOBS = {"batch", "convolution", "optimizer", "keep_memory"}


def blocks(page: Path, language: str = "bash") -> str:
    """Return the blocks of a page in a language, one after the other."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return "".join(text for name, text in found if name == language)


def computed(page: Path) -> dict[str, float]:
    """Return the results of the lines `name = expression = value` of a page, and check each.

    An expression may use the names before it, with their exact values.
    """
    values: dict[str, float] = {}
    for line in blocks(page, "text").splitlines():
        name, expression, printed = line.strip().split(" = ")
        values[name] = eval(expression, {"__builtins__": {}, "max": max}, values)
        decimals = len(printed.partition(".")[2])
        assert values[name] == pytest.approx(float(printed), abs=0.501 * 10**-decimals), line
    assert values, page
    return values


@pytest.mark.parametrize("page", SOLUTIONS, ids=lambda path: path.stem)
def test_a_solution_computes_what_it_prints(page):
    computed(page)


def test_every_exercise_has_the_same_parts_and_a_solution():
    assert len(EXERCISES) == 8
    index = (COURSE / "index.md").read_text()
    for exercise, solved in zip(EXERCISES, SOLUTIONS, strict=True):
        text = exercise.read_text()
        parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert parts == ["What you learn", "Before", "Predict", "Measure", "Compare", "Explain"]
        assert "inside?" in text or exercise.name.startswith(("6", "8"))
        assert len(text.split()) <= 700
        assert f"[Solution](solutions/{exercise.name})" in text
        parts = re.findall(r"^## (.*)$", solved.read_text(), re.MULTILINE)
        assert parts == ["Prediction", "Measurement", "Why they differ"]
        assert f"]({exercise.name})" in index
        # A solution measures as its exercise does.
        assert set(measuring(solved)) <= set(measuring(exercise))


def measuring(page: Path) -> list[str]:
    """Return the commands of a page that call Escala, each as one line."""
    joined = blocks(page).replace("\\\n", " ")
    commands = re.findall(r"^uv run (?:escala|python scripts/).*$", joined, re.MULTILINE)
    return [" ".join(command.split()) for command in commands]


def experiments(page: Path) -> list[str]:
    """Return the experiments that the commands of a page name, without a second naming."""
    named = re.findall(r"experiments/course/[\w-]+\.yaml", " ".join(measuring(page)))
    return list(dict.fromkeys(named))


def test_every_experiment_belongs_to_one_exercise_and_is_named_by_its_commands():
    files_by_page = {page.name: experiments(page) for page in EXERCISES}
    # The last one is on a script as it is.
    assert files_by_page.pop(EXERCISES[-1].name) == []
    for tensorflow, pytorch in files_by_page.values():
        assert pytorch == tensorflow.replace(".yaml", "-torch.yaml")
    named = sorted(file for files in files_by_page.values() for file in files)
    assert named == [str(path.relative_to(ROOT)) for path in EXPERIMENTS]


def engine_left_out(path: Path) -> dict[str, object]:
    """Return an experiment without its name and title, and without what differs by engine."""
    settings = yaml.safe_load(path.read_text())
    del settings["experiment"], settings["title"]
    if "batch" in path.name:
        settings["variants"] = {
            name: {key for key in knobs if key not in OWN_KNOBS}
            for name, knobs in settings["variants"].items()
        }
    text = json.dumps(settings, default=sorted)
    for tensorflow, pytorch in IN_PYTORCH.items():
        text = text.replace(f'"{tensorflow}"', f'"{pytorch}"')
    return json.loads(text)


@pytest.mark.parametrize(
    "path", [path for path in EXPERIMENTS if "-torch" in path.name], ids=lambda path: path.stem
)
def test_an_exercise_is_the_same_in_both_engines(path):
    other = path.with_name(path.name.replace("-torch", ""))
    assert engine_left_out(path) == engine_left_out(other)
    assert {run.strategy for run in load(path).runs} <= set(IN_PYTORCH.values())


@pytest.mark.parametrize("page", EXERCISES[:-1], ids=lambda path: path.stem)
def test_tables_and_runs_that_a_page_names_exist(page):
    text = page.read_text()
    by_name = {each.name: each for each in (load(ROOT / file) for file in experiments(page))}
    shortest = min(by_name, key=len)
    for name in re.findall(r"results/([\w-]+\*?)/", text):
        # Tables of both engines are read by a pattern.
        assert name in by_name or name == f"{shortest}*"
    read = r"tables/(\w+)\.csv'\)[^\n]*\n(.*?)(?:\n\w+ = pandas|\"$)"
    for table, columns in re.findall(read, text, re.M | re.S):
        # A value that a column is compared with is no column.
        names = re.sub(r"[!=]= '[^']*'", "", columns)
        assert set(re.findall(r"'(\w+)'", names)) <= set(dtypes(table))
    for name, path in re.findall(r"results/([\w-]+)/runs/([^*\s]*)/(?:run|timeline)\.json", text):
        *configuration, probe = path.split("/")
        assert by_name[name].run(*configuration, None, probe)
