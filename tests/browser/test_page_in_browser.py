"""The page of an experiment in a real browser: at three widths, printed, by keyboard."""

from __future__ import annotations

import base64
import io
import re
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from pypdf import PdfReader
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.conftest import AXE
from tests.unit.fixtures_runs import fair
from tests.unit.pages import HOSTILE, TITLE, drawn, failed, hostile, tabled, three, written

WIDTHS = (1400, 1000, 390)
OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --window-size=1400,1000"
)

pytestmark = pytest.mark.browser


def chrome(**logs: str) -> webdriver.Chrome:
    """Start a browser that keeps these logs."""
    options = webdriver.ChromeOptions()
    for option in OPTIONS.split():
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", logs)
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    driver = chrome(browser="ALL", performance="ALL")
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """The address of a page alone in a folder, whose names from data try to do harm."""
    folder = tmp_path_factory.mktemp("page")
    frames = hostile(three(folder / "experiment"))
    text = written(frames, drawn(frames, folder, ("seconds_per_epoch", "speedup")))
    return alone(tmp_path_factory, text)


@pytest.fixture(scope="module")
def page_of_failures(tmp_path_factory) -> str:
    """The address of a page on runs that all failed."""
    folder = tmp_path_factory.mktemp("failed")
    frames = failed(folder / "experiment")
    return alone(tmp_path_factory, written(frames, drawn(frames, folder, ("speedup",))))


@pytest.fixture(scope="module")
def page_of_a_verdict(tmp_path_factory) -> str:
    """The address of a page whose answer has details."""
    folder = tmp_path_factory.mktemp("verdict")
    frames = tabled(fair(folder / "experiment", 5.0, 4.0, 3.0))
    return alone(tmp_path_factory, written(frames, drawn(frames, folder, ("seconds_per_epoch",))))


def alone(tmp_path_factory, text: str) -> str:
    """Write a page without any file alongside it, and return its address."""
    path = tmp_path_factory.mktemp("lonely") / "index.html"
    path.write_text(text)
    return path.as_uri()


@pytest.fixture
def opened(browser, page) -> webdriver.Chrome:
    """A browser that shows the page anew."""
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get(page)
    return browser


def resize(browser: webdriver.Chrome, width: int) -> None:
    """Give the page a width; a narrow window is refused by the browser itself."""
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def assert_quiet(browser: webdriver.Chrome) -> None:
    """Assert that the console is empty and that only the page itself was requested."""
    assert browser.get_log("browser") == []
    requests = [
        entry["message"]
        for entry in browser.get_log("performance")
        if "Network.requestWillBeSent" in entry["message"]
    ]
    addresses = {re.search(r'"url":"([^"]*)"', each)[1] for each in requests}
    assert {each for each in addresses if not each.startswith(("file:", "data:"))} == set()
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def assert_fits(browser: webdriver.Chrome, width: int) -> None:
    """Assert that a page of this width needs no scrolling to the side."""
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert width - 20 <= wide <= width, "a scroll bar takes less than 20 pixels"


def assert_nothing_scrolls_sideways(browser: webdriver.Chrome) -> None:
    """Assert that no table is wider than its place, and only figures scroll in theirs."""
    wide = browser.execute_script(
        "return Array.from(document.querySelectorAll('.scroll, table, .first svg')).filter("
        "each => each.getBoundingClientRect().right > innerWidth"
        " || !each.closest('figure') && each.scrollWidth > each.clientWidth + 1)"
        ".map(each => each.outerHTML.slice(0, 120))"
    )
    assert wide == []


def assert_accessible(browser: webdriver.Chrome) -> None:
    """Assert that axe-core finds nothing in the page as it is shown."""
    found = [
        f"{each['impact']} {each['id']}: {each['help']}: {node['html'][:200]}"
        for each in violations(browser)
        for node in each["nodes"]
    ]
    assert found == []


def violations(browser: webdriver.Chrome) -> list[dict]:
    """Return what axe-core finds. The page's policy is not for what comes from the browser."""
    run = "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)"
    for expression in (AXE.read_text(), run):
        evaluated = browser.execute_cdp_cmd(
            "Runtime.evaluate",
            {"expression": expression, "awaitPromise": True, "returnByValue": expression == run},
        )
        assert "exceptionDetails" not in evaluated, evaluated
    return evaluated["result"]["value"]


def press_until(browser: webdriver.Chrome, key: str, selector: str, most: int = 200) -> None:
    """Press a key until an element has the focus."""
    for _ in range(most):
        browser.switch_to.active_element.send_keys(key)
        if browser.execute_script("return document.activeElement.matches(arguments[0])", selector):
            return
    raise AssertionError(f"{selector} is not reached by the keyboard")


def printed_page(browser: webdriver.Chrome) -> PdfReader:
    """Return what the browser prints."""
    return PdfReader(io.BytesIO(base64.b64decode(browser.print_page())))


def _letters(text: str) -> str:
    """Return a text without spaces and ligatures."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def shown(browser: webdriver.Chrome, column: int = 2) -> list[str]:
    """Return a column of the rows of the table of runs that are on display."""
    return browser.execute_script(
        "return Array.from(document.querySelectorAll('#runs-table tbody tr'))"
        ".filter(row => !row.hidden).map(row => row.cells[arguments[0]].textContent)",
        column,
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_its_window_and_asks_for_nothing(opened, width):
    resize(opened, width)
    assert_fits(opened, width)
    if width == min(WIDTHS):
        assert_nothing_scrolls_sideways(opened)
    tops = opened.execute_script(
        "return ['.answer', '#figure-seconds_per_epoch', '#why', '#sure #figure-speedup'].map("
        "at => document.querySelector(at).getBoundingClientRect().top)"
    )
    assert tops == sorted(tops) and tops[1] < 1000, "the first screen shows answer and figure"
    letters = opened.execute_script(
        "const texts = document.querySelectorAll('#figure-seconds_per_epoch svg text');"
        "return Math.min(...Array.from(texts).map("
        "text => text.getBoundingClientRect().height).filter(height => height > 0))"
    )
    assert letters > 6
    assert_quiet(opened)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_figure_is_beside_the_details_of_the_answer_or_before_them(
    browser, page_of_a_verdict, width
):
    resize(browser, width)
    browser.get(page_of_a_verdict)
    answer, figure, details, brief = (
        browser.find_element(By.CSS_SELECTOR, selector).rect
        for selector in (".answer", ".first figure", ".details", ".brief")
    )
    assert answer["y"] + answer["height"] < figure["y"] and details["y"] < brief["y"]
    if width == min(WIDTHS):
        assert figure["y"] + figure["height"] < min(1000, details["y"])
    else:
        assert figure["y"] == details["y"]
        assert details["x"] + details["width"] < figure["x"]


def test_the_values_of_a_row_are_shown_where_one_points_under_the_policy(opened):
    resize(opened, 1400)
    *_, row = opened.find_elements(By.CSS_SELECTOR, "#figure-seconds_per_epoch .told")
    box = opened.find_element(By.ID, "told")
    assert not box.is_displayed()
    ActionChains(opened).move_to_element(row).perform()
    WebDriverWait(opened, 60).until(lambda _: box.is_displayed())
    assert "configuration: horovod-gloo 1x2" in box.text and "runs ok: 2 of 3" in box.text
    shade = row.find_element(By.CSS_SELECTOR, "path")
    assert float(shade.value_of_css_property("opacity")) == pytest.approx(0.08)
    assert not box.find_elements(By.CSS_SELECTOR, "img, script, b")
    ActionChains(opened).move_to_element(opened.find_element(By.TAG_NAME, "h1")).perform()
    WebDriverWait(opened, 60).until(lambda _: not box.is_displayed())
    assert_quiet(opened)


@pytest.mark.axe
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["page", "page_of_a_verdict", "page_of_failures"])
def test_nothing_keeps_readers_out(browser, request, name, width):
    resize(browser, width)
    browser.get(request.getfixturevalue(name))
    assert_accessible(browser)


@pytest.mark.axe
def test_faults_of_access_are_found(opened):
    opened.execute_script("document.querySelector('#runs-form label').remove()")
    assert "label" in {each["id"] for each in violations(opened)}


def test_names_from_data_are_only_text_and_no_other_code_runs(opened):
    assert opened.title == TITLE
    rows = opened.execute_script("return document.querySelector('#runs-table').innerText")
    for name in ("demo-1000", "virus-cnn", "tuned"):
        assert HOSTILE[name] in rows
    assert opened.execute_script("return document.images.length") == 0
    assert_quiet(opened)
    assert opened.execute_script(
        "const code = document.createElement('script'); code.textContent = 'window.ran = 1';"
        "document.body.append(code); return window.ran === undefined"
    )
    assert any("Content Security Policy" in each["message"] for each in opened.get_log("browser"))


def test_the_runs_are_filtered_and_sorted_by_keyboard_alone(opened, page):
    opened.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert opened.switch_to.active_element.text == "Skip to the runs"
    opened.switch_to.active_element.send_keys(Keys.ENTER)
    assert opened.current_url.endswith("#runs") and len(shown(opened)) == 9
    heading = opened.find_element(By.CSS_SELECTOR, "th[data-key=train_seconds_per_epoch]")
    press_until(opened, Keys.TAB, "th[data-key=train_seconds_per_epoch] button")
    sorted_by = []
    for key, order in ((Keys.ENTER, "ascending"), (Keys.SPACE, "descending")):
        opened.switch_to.active_element.send_keys(key)
        # The rows are sorted when the browser tells of the new address, after the key.
        WebDriverWait(opened, 60).until(lambda _, o=order: heading.get_attribute("aria-sort") == o)
        sorted_by.append(shown(opened, 8))
        if order == "ascending":
            assert opened.current_url == f"{page}#runs?sort=train_seconds_per_epoch"
    up, down = sorted_by
    assert up[-1] == down[-1] == "–" and up[:-1] == sorted(up[:-1], key=float) == down[-2::-1]
    press_until(opened, Keys.TAB, ".files li:last-child a")
    assert_quiet(opened)


def test_the_address_keeps_filter_and_order(opened, page):
    opened.find_element(By.ID, "runs-filter").send_keys("HOROVOD failed")
    assert shown(opened) == ["horovod-gloo"]
    assert opened.find_element(By.ID, "runs-count").text == "1 of 9 runs"
    assert opened.current_url == f"{page}#runs?filter=HOROVOD+failed"
    opened.get("about:blank")
    opened.get(f"{page}#runs?filter=horovod&sort=-strategy")
    assert shown(opened) == ["horovod-mpi"] * 3 + ["horovod-gloo"] * 3
    assert opened.find_element(By.ID, "runs-filter").get_attribute("value") == "horovod"
    opened.find_element(By.ID, "runs-filter").clear()
    opened.find_element(By.ID, "runs-filter").send_keys("no such run")
    assert shown(opened) == []
    assert_quiet(opened)


def test_the_first_printed_page_has_the_answer(opened):
    printed = printed_page(opened)
    words = _letters(printed.pages[0].extract_text())
    for selector in (".question", ".brief dd", "#figure-seconds_per_epoch figcaption"):
        assert _letters(opened.find_element(By.CSS_SELECTOR, selector).text) in words
    assert "Noverdictfrom2pairedruns:twoprocesses" in words
    everything = _letters("".join(page.extract_text() for page in printed.pages))
    assert "Everymeasurementofeverytimingrun." in everything
    assert "Pressaheading" not in everything, "nothing on paper can be pressed"
    assert len(printed.pages) < 20
    assert all(page.extract_text().strip() for page in printed.pages)


def test_a_table_on_several_printed_pages_has_its_headings_on_each(opened):
    opened.execute_script(
        "const body = document.querySelector('#runs-table tbody'), rows = Array.from(body.rows);"
        "for (let time = 0; time < 15; time++)"
        " rows.forEach(row => body.append(row.cloneNode(true)))"
    )
    pages = [_letters(page.extract_text()) for page in printed_page(opened).pages]
    assert sum("medianstep(s)" in page for page in pages) > 2


def test_it_is_readable_without_javascript(opened, page):
    opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened.get(page)
        body = opened.find_element(By.TAG_NAME, "body").text
        assert "No verdict" in body and body.count("horovod-gloo") > 3
        assert not opened.find_element(By.ID, "runs-form").is_displayed()
    finally:
        opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_page_of_the_first_command_is_quiet_at_every_width(browser, first_command, tmp_path):
    [page] = first_command.glob("results/*/index.html")
    assert page.stat().st_size < 400_000
    lonely = Path(shutil.copy(page, tmp_path))
    browser.get("about:blank")
    browser.get_log("browser"), browser.get_log("performance")
    for width in WIDTHS:
        resize(browser, width)
        browser.get(lonely.as_uri())
        assert_fits(browser, width)
        assert_quiet(browser)
