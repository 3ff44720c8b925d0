"""The course: its pages, its experiments, and the arithmetic of its solutions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from escala.experiment import load
from escala.report.tables.base import dtypes
from tests.conftest import ROOT

COURSE = ROOT / "docs" / "course"
EXERCISES = sorted(COURSE.glob("[0-9]-*.md"))
SOLUTIONS = [COURSE / "solutions" / path.name for path in EXERCISES]
EXPERIMENTS = sorted((ROOT / "experiments" / "course").glob("*.yaml"))


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
    assert len(EXERCISES) == 6
    index = (COURSE / "index.md").read_text()
    for exercise, solved in zip(EXERCISES, SOLUTIONS, strict=True):
        text = exercise.read_text()
        parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert parts == ["What you learn", "Before", "Predict", "Measure", "Compare"]
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


def test_every_experiment_belongs_to_one_exercise_and_is_named_by_its_commands():
    named = [
        set(re.findall(r"experiments/course/[\w-]+\.yaml", " ".join(measuring(page))))
        for page in EXERCISES
    ]
    assert all(len(files) == 1 for files in named)
    assert sorted(set().union(*named)) == [str(path.relative_to(ROOT)) for path in EXPERIMENTS]


@pytest.mark.parametrize("page", EXERCISES, ids=lambda path: path.stem)
def test_tables_and_runs_that_a_page_names_exist(page):
    text = page.read_text()
    experiment = load(ROOT / re.search(r"experiments/course/[\w-]+\.yaml", text)[0])
    for name in re.findall(r"results/([\w-]+)/", text):
        assert name == experiment.name
    read = r"tables/(\w+)\.csv'\)[^\n]*\n(.*?)(?:\n\w+ = pandas|\"$)"
    for table, columns in re.findall(read, text, re.M | re.S):
        # A value that a column is compared with is no column.
        names = re.sub(r"[!=]= '[^']*'", "", columns)
        assert set(re.findall(r"'(\w+)'", names)) <= set(dtypes(table))
    for path in re.findall(r"runs/([^*\s]*)/(?:run|timeline)\.json", text):
        *configuration, probe = path.split("/")
        assert experiment.run(*configuration, None, probe)
