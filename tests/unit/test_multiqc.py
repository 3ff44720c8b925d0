"""What MultiQC gets: the answer and the table of configurations, with names as text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from html import unescape

import pytest
from fixtures_runs import REFERENCES, fair
from pages import HOSTILE, TITLE, Parsed, hostile, three

from escala.report import tables
from escala.report.findings import of_section
from escala.report.multiqc import contents
from escala.report.overview import overview
from scripts import multiqc


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    return three(tmp_path_factory.mktemp("three"))


def test_the_answer_is_that_of_the_page(frames):
    found = contents(frames, "demo", TITLE)["answer_mqc.json"]
    parsed = Parsed(found["data"])
    assert not parsed.errors
    first, *more = (each.text.replace("`", "") for each in of_section("answer", frames, "demo"))
    assert parsed.text_of("p") == [first]
    assert parsed.text_of("li")[: len(more)] == more
    assert len(parsed.text_of("li")) > len(more), "it tells what to do next"


def test_the_table_is_that_of_the_page(frames):
    found = contents(frames, "demo", TITLE)["configurations_mqc.json"]
    headings, rows = overview(frames)
    assert [each["title"] for each in found["headers"].values()] == headings[1:]
    assert found["pconfig"]["col1_header"] == headings[0]
    for label, *cells in rows:
        assert list(map(unescape, found["data"][label].values())) == cells


def test_names_from_data_and_titles_stay_text(tmp_path):
    experiment = fair(tmp_path, 5.6, 4.6, 3.9)
    frames = hostile(
        tables.tables(
            experiment.runs, experiment.dataset_files, experiment.class_files, references=REFERENCES
        )
    )
    title = 'a <b> " onmouseover="alert(1)'
    found = contents(frames, "demo", title)
    name = HOSTILE["tuned"]
    answer = Parsed(found["answer_mqc.json"]["data"])
    assert {name for name, _ in answer.elements} <= {"p", "strong", "ul", "li", "code"}
    assert name in "".join(answer.text_of("p"))
    table = found["configurations_mqc.json"]
    assert any(name in unescape(label) for label in table["data"])
    assert unescape(table["pconfig"]["title"]) == f"Escala: {title}"
    texts = [each for content in found.values() for each in _strings(content)]
    texts.remove(found["answer_mqc.json"]["data"])
    assert not [each for each in texts if set(each) & set("<>\"'")]


def _strings(content: object) -> Iterator[str]:
    """Yield all strings in a JSON value, keys included."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from (key, *_strings(value))


def test_sections_of_several_experiments_stand_apart(frames):
    ids = [each["id"] for name in ("one", "two") for each in contents(frames, name, TITLE).values()]
    assert len(set(ids)) == len(ids) == 4


def test_the_script_writes_both_files(frames, tmp_path, monkeypatch):
    tables.write(frames, tmp_path / "tables")
    names = ("answer_mqc.json", "configurations_mqc.json")
    files = [str(tmp_path / "multiqc" / name) for name in names]
    arguments = ["--experiment", "demo", "--title", TITLE, "--tables", str(tmp_path / "tables")]
    monkeypatch.setattr(sys, "argv", ["multiqc", *arguments, "--output", *files])
    multiqc.main()
    read = tables.read(tmp_path / "tables")
    for name, content in contents(read, "demo", TITLE).items():
        assert json.loads((tmp_path / "multiqc" / name).read_text()) == content
