"""The script that adds values to the chart of a page."""

from __future__ import annotations

import pytest
import vl_convert

from escala.report.vega import script


@pytest.fixture
def bundled(monkeypatch):
    """Return the list to which each bundling adds the text that it returned."""
    texts, bundle = [], vl_convert.javascript_bundle

    def counted():
        texts.append(bundle())
        return texts[-1]

    monkeypatch.setattr(vl_convert, "javascript_bundle", counted)
    return texts


def test_it_ends_no_element_and_defines_what_the_page_calls():
    text = script()
    assert "</script" not in text.lower() and "<!--" not in text and "vegaEmbed" in text
    assert len(text.encode()) < 1_000_000


def test_it_is_bundled_once_and_then_taken_from_the_store(bundled, tmp_path, monkeypatch):
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))
    assert script() == script()
    assert len(bundled) == 1


def test_it_is_bundled_without_a_store(bundled, monkeypatch):
    monkeypatch.setenv("ESCALA_STORE", "off")
    assert script() == script()
    assert len(bundled) == 2
