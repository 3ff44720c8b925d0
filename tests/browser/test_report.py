"""The report in a real browser: one file, every figure shown."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from escala.report.figures import FIGURES

PATIENCE_SECONDS = 90
OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --window-size=1400,1000"
)

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(first_command, tmp_path_factory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for option in OPTIONS.split():
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    # Alone in an empty place: a report that needs a neighbour or the network shows it here.
    [report] = first_command.glob("results/*/report.html")
    lonely = shutil.copy(report, tmp_path_factory.mktemp("lonely"))
    driver.get(Path(lonely).as_uri())
    yield driver
    driver.quit()


def click(browser: webdriver.Chrome, text: str) -> None:
    eventually(
        lambda: [e for e in browser.find_elements(By.TAG_NAME, "a") if e.text.strip() == text]
    )[0].click()


def eventually(look):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found
    return found


def shown(browser: webdriver.Chrome) -> list[str]:
    """Return the names of the figures on display that the browser could draw."""
    return [
        source.split("filename=")[1].split(";")[0]
        for image in browser.find_elements(By.TAG_NAME, "img")
        if "svg" in (source := image.get_attribute("src")) and "logo.svg" not in source
        if browser.execute_script(
            "return arguments[0].complete && arguments[0].naturalWidth > 100", image
        )
    ]


def newly_shown(browser: webdriver.Chrome, eye: WebElement) -> set[str]:
    """Click until a figure appears: a click may come before the page listens."""
    before = set(shown(browser))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        eye.click()
        pause = time.monotonic() + 8
        while time.monotonic() < pause:
            if found := set(shown(browser)) - before:
                return found
            time.sleep(0.1)
    raise AssertionError("no further figure appeared")


def test_every_figure_is_shown(browser, first_command):
    drawn = {path.name for path in first_command.glob("results/*/figures/**/*.svg")}
    assert len(drawn) > len(FIGURES) and {f"{name}.svg" for name in FIGURES} <= drawn
    seen: set[str] = set()
    for category in ("Data", "Quality", "Time"):
        browser.refresh()
        click(browser, category)
        eyes = eventually(lambda: browser.find_elements(By.CSS_SELECTOR, "a[iconname=eye]"))
        for eye in eyes:
            seen |= newly_shown(browser, eye)
    assert seen == drawn


def test_tables_and_summary_are_inside(browser, first_command):
    inside = browser.execute_script("return Object.keys(results)")
    [summary] = first_command.glob("results/*/summary.md")
    assert str(summary.relative_to(first_command)) in inside
    assert {Path(name).name for name in inside if name.endswith(".csv")} == {
        f"{path.name.split('.')[0]}.csv"
        for path in (Path(__file__).parents[2] / "schemas" / "tables").iterdir()
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
