"""The page of an experiment in a real browser: at three widths, printed, by keyboard."""

from __future__ import annotations

import base64
import io
import re
import shutil
import unicodedata
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from pypdf import PdfReader
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from escala.core.errors import InputError
from escala.report.figures import ALWAYS_DRAWN
from scripts import gallery
from tests.conftest import AXE, ROOT
from tests.unit.fixtures_runs import fair
from tests.unit.pages import HOSTILE, TITLE, drawn, failed, hostile, tabled, three, written

#: Widths of windows, with their heights.
HEIGHTS = {1280: 800, 768: 1024, 390: 844}
WIDTHS = tuple(HEIGHTS)
#: The most words that a page shows with its details folded, and the most pages of it on paper.
WORDS, PAPER = 900, 4
NAMES = ("default", "hostile", "failed", "verdict")
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
def pages(first_command, tmp_path_factory) -> dict[str, str]:
    """The addresses of pages, each alone in a folder.

    In one, names from data try to do harm; in another, all runs failed; one answer has details.
    """
    folder = tmp_path_factory.mktemp("pages")
    [default] = first_command.glob("results/*/index.html")
    assert default.stat().st_size < 400_000
    texts = {"default": default.read_text()}
    for name, frames, figures in (
        ("hostile", hostile(three(folder / "hostile")), ("seconds_per_epoch", "speedup")),
        ("failed", failed(folder / "failed"), ("speedup",)),
        ("verdict", tabled(fair(folder / "fair", 5.0, 4.0, 3.0)), ("seconds_per_epoch",)),
    ):
        texts[name] = written(frames, drawn(frames, tmp_path_factory.mktemp(name), figures))
    addresses = {}
    for name, text in texts.items():
        (path := tmp_path_factory.mktemp("lonely") / "index.html").write_text(text)
        addresses[name] = path.as_uri()
    return addresses


@pytest.fixture
def page(pages) -> str:
    return pages["hostile"]


@pytest.fixture
def opened(browser, page) -> webdriver.Chrome:
    """A browser that shows the page anew."""
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get(page)
    return browser


def resize(browser: webdriver.Chrome, width: int, scheme: str = "light") -> None:
    """Give the page a width and a colour scheme; a narrow window is refused by the browser."""
    height = HEIGHTS.get(width, 1000)
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def unfold(browser: webdriver.Chrome) -> None:
    """Unfold all details."""
    browser.find_element(By.ID, "unfold").click()
    assert not browser.find_elements(By.CSS_SELECTOR, "details:not([open])")


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


def press_until(browser: webdriver.Chrome, key: str, selector: str, most: int = 200) -> None:
    """Press a key until an element has the focus."""
    for _ in range(most):
        browser.switch_to.active_element.send_keys(key)
        if browser.execute_script("return document.activeElement.matches(arguments[0])", selector):
            return
    raise AssertionError(f"{selector} is not reached by the keyboard")


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


@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_its_window_and_asks_for_nothing(browser, pages, name):
    browser.get("about:blank")
    browser.get_log("browser"), browser.get_log("performance")
    for width in WIDTHS:
        resize(browser, width)
        browser.get(pages[name])
        assert_fits(browser, width)
        assert_quiet(browser)
        shown = browser.execute_script("return document.body.innerText")
        assert len(shown.split()) <= WORDS
        if name == "hostile":
            assert_letters(browser)
        if name == "verdict":
            assert_first_screen(browser, width)
        unfold(browser)
        assert len(browser.execute_script("return document.body.innerText")) > len(shown)
        assert_fits(browser, width)
    if name == "hostile":
        assert_nothing_scrolls_sideways(browser)


def assert_letters(browser: webdriver.Chrome) -> None:
    """Assert that the letters of the first figure have some size."""
    letters = browser.execute_script(
        "const texts = document.querySelectorAll('#figure-seconds_per_epoch svg text');"
        "return Math.min(...Array.from(texts).map("
        "text => text.getBoundingClientRect().height).filter(height => height > 0))"
    )
    assert letters > 6


def assert_first_screen(browser: webdriver.Chrome, width: int) -> None:
    """Assert that a window shows the answer, its ratio and its reasons without scrolling.

    The figure is beside them in a wide window, and below in others.
    """
    answer, ratios, brief, figure, contents = (
        browser.find_element(By.CSS_SELECTOR, selector).rect
        for selector in (".answer", ".ratios", ".brief", ".first figure", "nav")
    )
    assert answer["y"] < ratios["y"] < brief["y"] < contents["y"]
    reasons = browser.find_elements(By.CSS_SELECTOR, ".brief div")
    needed = [reason.rect for reason in reasons if "At what cost" not in reason.text]
    assert len(needed) == len(reasons) - 1 >= 4
    assert max(reason["y"] + reason["height"] for reason in needed) <= HEIGHTS[width]
    if width == max(WIDTHS):
        assert brief["x"] + brief["width"] < figure["x"] and figure["y"] == answer["y"]
    else:
        assert brief["y"] + brief["height"] <= figure["y"] + 1
    lines = browser.find_elements(By.CSS_SELECTOR, ".ratio .interval")
    assert lines and all(0 < line.rect["x"] < width - line.rect["width"] for line in lines)


def test_the_values_of_a_row_are_shown_where_one_points_under_the_policy(opened):
    resize(opened, 1400)
    *_, row = opened.find_elements(By.CSS_SELECTOR, "#figure-seconds_per_epoch .has-tooltip")
    box = opened.find_element(By.ID, "tooltip")
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
@pytest.mark.parametrize(
    "name", ["default", "failed", *(pytest.param(n, marks=pytest.mark.sweep) for n in NAMES[1::2])]
)
def test_nothing_keeps_readers_out(browser, pages, name):
    """Check it with axe-core. WebDriver's script is not subject to the page's policy."""
    run = "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)"
    for width, scheme in product(WIDTHS, ("light", "dark")):
        resize(browser, width, scheme)
        browser.get(pages[name])
        unfold(browser)
        for expression in (AXE.read_text(), run):
            asked = {"expression": expression, "awaitPromise": True}
            asked |= {"returnByValue": expression == run}
            evaluated = browser.execute_cdp_cmd("Runtime.evaluate", asked)
            assert "exceptionDetails" not in evaluated, evaluated
        found = [
            f"{each['impact']} {each['id']}: {each['help']}: {node['html'][:200]}"
            for each in evaluated["result"]["value"]
            for node in each["nodes"]
        ]
        assert found == [], (width, scheme)


def test_names_from_data_are_only_text_and_no_other_code_runs(opened):
    assert opened.title == TITLE
    rows = opened.execute_script("return document.querySelector('#runs-table').textContent")
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
    press_until(opened, Keys.TAB, "#data details:last-child summary")
    opened.switch_to.active_element.send_keys(Keys.ENTER)
    press_until(opened, Keys.TAB, ".files li:last-child a")
    assert_quiet(opened)


def test_the_address_keeps_filter_and_order(opened, page):
    unfold(opened)
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
    printed = PdfReader(io.BytesIO(base64.b64decode(opened.print_page())))
    words = _letters(printed.pages[0].extract_text())
    for selector in (".question", ".brief dd", "#figure-seconds_per_epoch figcaption"):
        assert _letters(opened.find_element(By.CSS_SELECTOR, selector).text) in words
    assert "Noverdictfrom2pairedruns:twoprocesses" in words
    everything = _letters("".join(page.extract_text() for page in printed.pages))
    assert "Unfoldall" not in everything, "nothing on paper can be pressed"
    assert len(printed.pages) <= PAPER
    assert all(page.extract_text().strip() for page in printed.pages)
    unfold(opened)
    unfolded = PdfReader(io.BytesIO(base64.b64decode(opened.print_page())))
    assert len(unfolded.pages) > len(printed.pages)


def test_it_is_readable_without_javascript(opened, page):
    opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened.get(page)
        body = opened.find_element(By.TAG_NAME, "body").text
        assert "No verdict" in body
        opened.find_element(By.CSS_SELECTOR, "#runs summary").click()
        assert opened.find_element(By.ID, "runs").text.count("horovod-gloo") >= 3
        assert not opened.find_element(By.ID, "runs-form").is_displayed()
    finally:
        opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.sweep
def test_the_gallery_is_drawn_and_each_page_answers_its_question(tmp_path, monkeypatch):
    named = re.findall(r"thumbnails\.svg#([\w-]+)", (gallery.GALLERY / "index.md").read_text())
    assert len(named) == 10
    kept = gallery.GALLERY / gallery.THUMBNAILS
    assert re.findall(r'<view id="([^"]+)"', kept.read_text()) == named
    assert kept.stat().st_size < 1_000_000
    shutil.copytree(gallery.GALLERY, tmp_path / "gallery")
    monkeypatch.setattr(gallery, "GALLERY", tmp_path / "gallery")
    monkeypatch.setattr("sys.argv", ["gallery"])
    (tmp_path / "gallery" / gallery.THUMBNAILS).unlink()
    gallery.main()
    drawn = (tmp_path / "gallery" / gallery.THUMBNAILS).read_text()
    pictures = re.findall(r"base64,([^\"]+)", drawn)
    assert len(set(pictures)) == len(named)
    page = tmp_path / "gallery" / "adder.html"
    page.write_text(page.read_text().replace("0.95", "0.96"))
    with pytest.raises(InputError, match="adder"):
        gallery.main()


def test_the_report_is_one_file_with_every_figure_and_table(first_command, tmp_path):
    driver = chrome(browser="ALL")
    [report] = first_command.glob("results/*/report.html")
    # Alone: a report that needs a neighbour or the network shows it here.
    driver.get(Path(shutil.copy(report, tmp_path)).as_uri())
    inside = driver.execute_script("return Object.keys(results)")
    files = [
        *first_command.glob("results/*/figures/*.svg"),
        *first_command.glob("results/*/summary.md"),
    ]
    assert {str(path.relative_to(first_command)) for path in files} <= set(inside)
    assert {f"{name}.svg" for name in ALWAYS_DRAWN} < {path.name for path in files}
    assert {Path(name).name for name in inside if name.endswith(".csv")} == {
        f"{path.name.split('.')[0]}.csv" for path in (ROOT / "schemas" / "tables").iterdir()
    }
    assert all(driver.execute_script("return Object.values(results).map(r => r.caption)"))
    severe = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [entry for entry in severe if "http" in entry["message"].split("file://")[0]], severe
    loaded = "return performance.getEntriesByType('resource').map(e => e.name)"
    assert not [name for name in driver.execute_script(loaded) if name.startswith("http")]
    driver.quit()
