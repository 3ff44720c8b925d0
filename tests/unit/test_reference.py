"""The reference pages are what the schemas say, and say all of it."""

from __future__ import annotations

import pytest
import yaml

from escala.experiment import schema as experiment
from escala.record import schema as run
from escala.reference import ROOT, outdated, pages
from scripts.docs_reference import all_pages


def test_committed_pages_are_up_to_date():
    assert outdated(ROOT / "docs" / "reference", all_pages()) == [], (
        "run python scripts/docs_reference.py"
    )


def test_a_changed_page_is_outdated(tmp_path):
    for name, text in pages().items():
        (tmp_path / name).write_text(text)
    assert outdated(tmp_path, pages()) == []
    (tmp_path / "run.md").write_text("something else")
    (tmp_path / "tables.md").unlink()
    assert outdated(tmp_path, pages()) == ["run.md", "tables.md"]


def _keys(node: object) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(_keys, node))
    if not isinstance(node, dict):
        return set()
    own = {k for k, v in node.get("properties", {}).items() if "description" in v}
    return own.union(*(_keys(value) for value in node.values()))


@pytest.mark.parametrize(
    ("page", "schema", "probe_keys"),
    [
        ("configuration.md", experiment, {"clocks", "resources", "timeline", "steps", "seconds"}),
        ("run.md", run, {"resources", "rss_bytes_max"}),
    ],
)
def test_every_described_key_is_on_the_page(page, schema, probe_keys):
    text = pages()[page]
    keys = _keys(schema.composed(yaml.safe_load(schema.SCHEMA.read_text())))
    assert len(keys) > 30
    assert probe_keys <= keys
    assert [key for key in sorted(keys) if f"| `{key}` |" not in text] == []


def test_types_limits_and_defaults(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "t.schema.yaml").write_text(
        """
        title: t
        required: [a]
        properties:
          a: {description: First., $ref: "#/$defs/fraction", unit: s}
          b: {description: "x | y", type: array, items: {type: array, items: {type: integer}}}
          c: {description: Third., enum: [null, one]}
          f: {description: Sixth., enum: [true, one]}
          d: {type: object, patternProperties: {"^x$": {properties: {e: {type: [string, "null"]}}}}}
        $defs: {fraction: {type: number, minimum: 0, maximum: 1, default: 0.5}}
        """
    )
    text = pages(tmp_path)["tables.md"]
    assert "| `a` | number | ≥ 0; ≤ 1 | s | required | First. |" in text
    assert "| `b` | array of arrays of integers |  |  | none | x \\| y |" in text
    assert "| `c` | string or null | `null`, `one` |  | none | Third. |" in text
    assert "| `f` | boolean or string | `true`, `one` |  | none | Sixth. |" in text
    assert "## `d.NAME`" in text
    assert "| `e` | string or null |  |  |" in text
