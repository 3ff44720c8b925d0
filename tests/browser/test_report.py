"""The report in a real browser: one file that holds every figure, table and the summary."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from escala.report.figures import FIGURES
from tests.browser.test_page_in_browser import chrome
from tests.conftest import ROOT

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(first_command, tmp_path_factory) -> Iterator[webdriver.Chrome]:
    driver = chrome(browser="ALL")
    # Alone in an empty place: a report that needs a neighbour or the network shows it here.
    [report] = first_command.glob("results/*/report.html")
    driver.get(Path(shutil.copy(report, tmp_path_factory.mktemp("lonely"))).as_uri())
    yield driver
    driver.quit()


def test_figures_tables_and_summary_are_inside(browser, first_command):
    inside = browser.execute_script("return Object.keys(results)")
    files = [
        *first_command.glob("results/*/figures/*.svg"),
        *first_command.glob("results/*/summary.md"),
    ]
    assert {str(path.relative_to(first_command)) for path in files} <= set(inside)
    assert {f"{name}.svg" for name in FIGURES} < {path.name for path in files}
    assert {Path(name).name for name in inside if name.endswith(".csv")} == {
        f"{path.name.split('.')[0]}.csv" for path in (ROOT / "schemas" / "tables").iterdir()
    }
    captions = browser.execute_script("return Object.values(results).map(r => r.caption)")
    assert all(captions)


def test_the_report_needs_nothing_else(browser):
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [entry for entry in severe if "http" in entry["message"].split("file://")[0]], severe
    external = browser.execute_script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert not [name for name in external if name.startswith("http")]
