"""The page is one valid, harmless file with the answer first."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import xml.etree.ElementTree as ET
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils.core import publish_parts
from fixtures_runs import REFERENCES, FakeExperiment, fair
from hypothesis import example, given
from hypothesis import strategies as st
from jinja2 import Environment
from pages import HOSTILE, TITLE, Parsed, drawn, failed, hostile, tabled, three, written
from sentences import told

from escala.report.figures import ALWAYS_DRAWN
from escala.report.findings.context import Report
from escala.report.page import FIGURE_SIZE, Inliner, page, templates
from escala.report.summary import all_findings, first_screen, overview, summary
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("few_resamples")

DRAWN = ("seconds_per_epoch", "speedup", "confusion_matrices")
SVG = "{http://www.w3.org/2000/svg}"
#: Bytes of a page.
LIMIT = 400_000


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    return three(tmp_path_factory.mktemp("three"))


@pytest.fixture(scope="module")
def figures(frames, tmp_path_factory):
    return drawn(frames, tmp_path_factory.mktemp("figures"), DRAWN)


@pytest.fixture(scope="module")
def text(frames, figures):
    return written(frames, figures)


@pytest.fixture(scope="module")
def parsed(text):
    return Parsed(text)


@pytest.fixture(scope="module")
def under_attack(frames, figures):
    return Parsed(written(hostile(frames), figures))


def test_it_is_valid_and_complete(parsed):
    assert not parsed.errors
    identifiers = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    inner = {a["href"][1:] for a in parsed.all("a") if a["href"].startswith("#")}
    assert inner and inner <= set(identifiers)
    for name in ("aria-labelledby", "for"):
        named = [a[name] for _, a in parsed.elements if name in a]
        assert named and {part for each in named for part in each.split()} <= set(identifiers)
    assert parsed.all("html") == [{"lang": "en"}] and parsed.text_of("h1") == [TITLE]


def test_the_answer_comes_first_and_figures_stand_where_their_findings_are(frames, text, parsed):
    sections = [attributes["id"] for attributes in parsed.all("section")]
    assert " ".join(sections) == "answer configurations sure scores why next runs data"
    report = Report(frames, "demo")
    texts, screen = parsed.text_of("p"), first_screen(report, all_findings(report))
    assert texts[0] == screen.question.replace("`", "")
    assert texts[1].startswith(screen.answers[0].finding.spoken.replace("`", ""))
    places = re.findall(r'<(?:section id="|figure id="figure-)(\w+)"', text)
    assert places[:2] == ["answer", "seconds_per_epoch"]
    assert places.index("scores") < places.index("confusion_matrices") < places.index("runs")
    # Sections without content are left out.
    alone = {name: frame[frame["strategy"] == "single"] if "strategy" in frame else frame
             for name, frame in frames.items()}  # fmt: skip
    left = [each["id"] for each in Parsed(page(alone, "demo", TITLE, {})).all("section")]
    assert left == [name for name in sections if name in left] and "next" not in left
    assert {"answer", "configurations", "runs", "data"} <= set(left)
    # Traces of runs are offered for Perfetto.
    trace = "runs/demo-1000/virus-cnn/horovod-mpi/1x2/tuned/native/clocks.rep1/trace.json"
    with_trace = Parsed(page(frames, "demo", TITLE, {}, [trace, "tables/runs.csv"]))
    assert [each["href"] for each in with_trace.all("a") if "download" in each] == [trace]
    assert [each["href"] for each in with_trace.all("a")].count(trace) == 1
    for shown, is_there in ((with_trace, True), (parsed, False)):
        assert ("https://ui.perfetto.dev" in shown.text_of("code")) == is_there


def test_every_run_is_in_the_table_with_the_values_that_sort_it(frames, parsed):
    runs = frames["runs"]
    values = [float(each["data-value"]) for each in parsed.all("td") if "data-value" in each]
    keys = ["repeat", "train_seconds_per_epoch", "step_median_seconds", "accuracy", "wall_seconds"]
    expected = runs[keys].astype(float).to_numpy().ravel()
    assert values == pytest.approx(list(expected[expected == expected]))
    assert len(parsed.all("tr")) == 2 + len(runs) + len(frames["configurations"])
    about = dict(zip(parsed.text_of("dt"), parsed.text_of("dd"), strict=True))
    assert about["horovod-gloo 1x2 rep 3: failed"] == "rank 1 was ended by signal 9"
    assert about["experiment"] == "demo" and about["hosts"] == "example"
    assert about["measurements"] == f"{len(runs)} measurements"
    assert "digests of the code" in about and "sessions" in about


def test_names_from_data_change_nothing_but_text(parsed, under_attack):
    assert not under_attack.errors
    assert [name for name, _ in under_attack.elements] == [name for name, _ in parsed.elements]
    inert = [
        [{k: v for k, v in attributes.items() if k != "content"} for _, attributes in page.elements]
        for page in (parsed, under_attack)
    ]
    assert inert[0] == inert[1]
    cells = set(under_attack.text_of("td"))
    assert cells >= {HOSTILE["demo-1000"], HOSTILE["virus-cnn"], HOSTILE["tuned"]}
    codes = "".join(under_attack.text_of("code"))
    assert "{{ 7 * 7 }}" in codes or "<b>" in codes
    assert HOSTILE["rank 1 was ended by signal 9"] in under_attack.text_of("dd")
    assert under_attack.text_of("script") == parsed.text_of("script")


def test_nothing_is_loaded_and_only_its_own_script_and_style_may_act(text, parsed):
    assert not [a for _, a in parsed.elements if any(name.startswith("on") for name in a)]
    assert not [a for _, a in parsed.elements if "src" in a or "style" in a]
    addresses = [a["href"] for _, a in parsed.elements if "href" in a]
    allowed = ("#", "figures/", "tables/", "data:image/png;base64,")
    assert addresses and all(address.startswith(allowed) for address in addresses)
    [policy] = [a["content"] for a in parsed.all("meta") if "http-equiv" in a]
    rules = dict(each.strip().split(" ", 1) for each in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for part in ("script", "style"):
        [content] = parsed.text_of(part)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{part}-src"] == f"'sha256-{digest}'"
    assert rules["img-src"] == "data:" and len(rules) == 6
    assert not re.findall(r"""(?:url\(|@import|href=|src=)["']?\s*(?:https?:)?//""", text)


def test_ratios_are_drawn_where_the_table_has_them(tmp_path):
    frames = tabled(fair(tmp_path, 5.6, 4.6, 3.9), references=REFERENCES)
    parsed = Parsed(page(frames, "demo", TITLE, {}))
    lines = list(parsed.all("line"))
    equal, places = (
        [
            [float(line[end].rstrip("%")) for end in ("x1", "x2")]
            for line in lines
            if line["class"] == kind
        ]
        for kind in ("equal", "interval")
    )
    middles = [float(each["cx"].rstrip("%")) for each in parsed.all("circle")]
    assert len({tuple(ends) for ends in equal}) == 1 and len(places) == len(middles) == len(equal)
    [(one, _), *_], [answer] = equal, Report(frames).answers
    rivals = [answer.closest, *filter(None, [answer.fewer])]
    scales = []
    for ratio in {rival.label: rival.ratio for rival in rivals}.values():
        # Each distance from the line of equal times is in proportion to the logarithm.
        factors = [
            (middles[place] - one) / math.log(ratio.value)
            for place, (low, high) in enumerate(places)
            if (low - one) / math.log(ratio.low)
            == pytest.approx((high - one) / math.log(ratio.high), rel=0.02)
            == pytest.approx((middles[place] - one) / math.log(ratio.value), rel=0.02)
        ]
        assert factors
        scales.append(factors[0])
    assert scales == pytest.approx([scales[0]] * len(scales), rel=0.02) and scales[0] > 0


def _contrast(one: str, other: str) -> float:
    """Return the contrast of two colours in hexadecimal digits (WCAG 2.2)."""
    light = []
    for colour in (one, other):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)
    return max(light) / min(light)


def test_colours_of_both_schemes_stand_out(parsed):
    [style, *_] = parsed.text_of("style")
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w+)", rule))
        for rule in re.findall(r":root \{(.*?)\}", style, re.S)[:2]
    )
    assert light.keys() == dark.keys() and light["paper"] != dark["paper"]
    for colours in (light, dark):
        for ink in ("ink", "soft", "accent"):
            assert all(_contrast(colours[ink], colours[on]) >= 4.5 for on in ("paper", "shade"))


def test_every_drawing_has_words_in_its_place(frames, parsed, figures):
    drawings, descriptions = parsed.all("svg"), parsed.text_of("desc")
    drawings = [drawing for drawing in drawings if "aria-hidden" not in drawing]
    assert len(drawings) == len(descriptions) == len(figures)
    assert {each["role"] for each in drawings} == {"img"}
    assert all(len(each) > 20 for each in descriptions)
    answer = told(frames, "answer")[0].replace("`", "")
    assert any(each.startswith(answer) for each in descriptions)


def test_a_figure_that_is_too_large_is_a_link_and_leaves_room_for_the_others(frames, figures):
    large = figures["speedup"].replace("</svg>", f"<text>{'x' * FIGURE_SIZE}</text></svg>")
    text = page(frames, "demo", TITLE, figures | {"speedup": large})
    assert len(text.encode()) < LIMIT
    assert text.count("Open the figure.") == 1 < len(figures)
    assert 'href="figures/speedup.svg"' in text and 'id="figure-speedup"' in text


def _fits(folder: Path) -> dict:
    """Return the tables of an experiment whose only workload is trained by a fit."""
    experiment = FakeExperiment(folder).add_dataset()
    return tabled(experiment.add("single", "1x1", 0.4, workload="kmer-logreg"))


@pytest.mark.parametrize("made", [failed, _fits])
def test_without_a_timed_step_figures_and_configurations_are_there_too(tmp_path, made):
    (tmp_path / "runs").mkdir()
    frames = made(tmp_path / "runs")
    figures = drawn(frames, tmp_path, ALWAYS_DRAWN)
    parsed = Parsed(written(frames, figures))
    test_it_is_valid_and_complete(parsed)
    shown = [attributes["id"] for attributes in parsed.all("figure")]
    assert sorted(shown) == sorted(f"figure-{name}" for name in figures)
    labels = [row[0] for row in overview(Report(frames))[1]]
    assert labels and set(labels) <= set(parsed.text_of("td"))
    if made is failed:
        start = "Unavailable: one process cannot be compared with two processes on one node: "
        assert parsed.text_of("p")[1].startswith(start)
        assert parsed.text_of("dd").count("no memory </section> left") == 2


@given(st.text())
@example("`7 s` takes 28.1 ms of 2 s, 4 steps and 12 % of it")
def test_text_is_shown_as_it_is_and_units_stay_with_their_numbers(text):
    shown = str(templates().get_template("shared.html").module.marked(text))
    read = unescape(re.sub(r"</?code>", "", shown))
    assert read.replace("\xa0", " ") == text.replace("`", "").replace("\xa0", " ")
    assert not re.search(r"<(?!/?code>)", shown)
    if text.startswith("`7 s`"):
        assert shown == "<code>7 s</code> takes 28.1\xa0ms of 2\xa0s, 4 steps and 12\xa0% of it"


def _elements(text: str) -> list[ET.Element]:
    names = ("path", "text", "use", "image")
    return [each for each in ET.fromstring(text).iter() if each.tag.removeprefix(SVG) in names]


def test_drawings_keep_their_shapes_and_styles(figures):
    inliner = Inliner()
    for name, svg in figures.items():
        shown = inliner.inline(svg, name, "title", "description")
        rules = dict(re.findall(r"\.(\w+)\{([^}]*)\}", inliner.rules))
        before, after = _elements(svg), _elements(shown)
        assert len(before) == len(after) > 50
        for one, other in zip(before, after, strict=True):
            assert "".join(other.itertext()) == "".join(one.itertext()).strip()
            style = {part.replace(" ", "") for part in one.get("style", "").split(";")} - {""}
            kept = rules.get(other.get("class", ""), "").split(";")
            assert {part.replace(" ", "") for part in kept} - {""} == style
            for key in ("d", "x", "y"):
                words, shown_as = one.get(key, "").split(), other.get(key, "").split()
                assert [each.isalpha() for each in words] == [each.isalpha() for each in shown_as]
                numbers = [float(each) for each in words if not each.isalpha()]
                kept = [float(each) for each in shown_as if not each.isalpha()]
                assert kept == pytest.approx(numbers, abs=0.00501)


def test_drawings_bring_no_style_and_refer_to_their_own_parts(figures):
    inliner, svg = Inliner(), figures["confusion_matrices"]
    by_figure = []
    for root in [ET.fromstring(inliner.inline(svg, name, "t", "d")) for name in ("one", "two")]:
        identifiers = {each.get("id") for each in root.iter()} - {None}
        values = " ".join(value for each in root.iter() for value in each.attrib.values())
        used = set(re.findall(r"url\(#([^)]*)\)", values))
        used |= {each.get("href")[1:] for each in root.iter("use")}
        assert used and used <= identifiers
        by_figure.append(identifiers)
    assert by_figure[0].isdisjoint(by_figure[1])
    svg = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><metadata><b/></metadata>
      <style>*{fill:red}</style><g id="axes"><path d="M 0 0" style="stroke: red"/></g></svg>"""
    inliner = Inliner()
    root = ET.fromstring(inliner.inline(svg, "x", "t", "d"))
    assert [each.tag for each in root.iter()] == ["svg", "title", "desc", "g", "path"]
    assert inliner.rules == ".d0{stroke: red}"


@pytest.mark.sweep
@pytest.mark.parametrize("change", [dict, hostile])
def test_the_front_page_of_snakemakes_report_has_the_answer_of_the_summary(tmp_path, change):
    """Rendered as Snakemake 9 does."""
    frames = change(tabled(fair(tmp_path, 5.6, 4.6, 3.9), references=REFERENCES))
    path = tmp_path / "summary.md"
    path.write_text(summary(frames, "demo", "A title", ["tables/speedup.csv"]))
    template = (ROOT / "report" / "workflow.rst").read_text()
    shown = []
    for files in ([], [tmp_path / "other.csv", path]):
        environment = Environment(trim_blocks=True, lstrip_blocks=True)
        records = [SimpleNamespace(path=file) for file in files]
        text = environment.from_string(template).render(files=records, categories={})
        settings = {"report_level": 2, "halt_level": 2}
        shown.append(publish_parts(text, writer="html", settings_overrides=settings)["html_body"])
    assert 'class="answer"' not in shown[0] and shown[1].count('class="answer"') == 1
    strong = shown[1].split('<p class="answer"><strong>')[1].split("</strong></p>")[0]
    [answer] = first_screen(Report(frames, "demo"), all_findings(Report(frames, "demo"))).answers
    assert unescape(strong) == answer.finding.spoken.replace("`", "") and "<" not in strong
