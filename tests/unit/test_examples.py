"""The files of `examples/`, and the pages that show them."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.documented import PAGES, files

SHOWN = {
    (str(page.relative_to(ROOT)), name): text
    for page in PAGES
    for name, text in files(page).items()
    if name.startswith("examples/")
}


@pytest.mark.parametrize(("page", "name"), SHOWN)
def test_a_page_shows_a_file_as_it_is(page, name):
    assert SHOWN[page, name] == (ROOT / name).read_text()


def test_every_example_is_on_a_page():
    text = "".join(page.read_text() for page in PAGES)
    missing = [path.name for path in (ROOT / "examples").iterdir() if path.name not in text]
    assert missing == []
