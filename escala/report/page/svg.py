"""Put the SVG files of several figures into one HTML page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterator
from functools import cache

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
#: Elements that Matplotlib draws with, and titles of parts; all others are left out.
_DRAWN = frozenset(
    {
        "svg", "g", "defs", "clipPath", "pattern", "path", "rect", "circle", "ellipse", "line",
        "polyline", "polygon", "text", "tspan", "use", "image", "title",
    }
)  # fmt: skip
_ATTRIBUTES = frozenset(
    {
        "d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "rx", "ry", "dx", "dy", "width",
        "height", "points", "transform", "clip-path", "clip-rule", "fill-rule", "viewBox",
        "preserveAspectRatio", "patternUnits", "patternTransform",
    }
)  # fmt: skip
#: The class of parts with a title, which `escala.report.figures.common.tell` gives them.
_TOLD = "told"
#: The least and the largest width of a drawing on the page, by its own.
_SMALLEST, _LARGEST = 0.8, 1.25
_LENGTH, _PIXELS_PER_POINT, _PIXELS_PER_REM = re.compile(r"([\d.]+)pt"), 4 / 3, 16
#: A property or a value of a style, without what ends a rule or loads a file.
_PROPERTY, _VALUE = re.compile(r"[a-z-]+"), re.compile(r"[\w#%.,'+\- ]*|url\(#[\w.-]+\)")
#: Identifiers that something in a file refers to.
_USED = re.compile(r"""(?:url\(|href=")#([^)"]+)""")
_PICTURE = "data:image/png;base64,"
#: Attributes that hold places and lengths alone, in points.
_PLACES = frozenset(
    {"d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "points"}
)
#: A number with more digits than can be seen: a hundredth of a point is left.
_PRECISE = re.compile(r"-?\d+\.\d{3,}(?:e[+-]?\d+)?")
#: A part that is moved or turned, and not scaled; a turn by nothing.
_MOVED = re.compile(r"(?:(?:translate|rotate)\([^()]*\) ?)+")
_UNTURNED = re.compile(r"rotate\(-?0 .*\)")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


class Drawings:
    """The figures of one page.

    A page allows no style attributes. Each style becomes a class, and equal styles of all figures
    share it. An identifier that a figure refers to becomes a short one, which no other figure has.
    Numbers are rounded to a hundredth of a point, and groups that say nothing are left out.
    """

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}
        self._identifiers: dict[tuple[str, str], str] = {}

    @property
    def rules(self) -> str:
        """The CSS rules of all classes."""
        return "".join(f".{name}{{{style}}}" for style, name in self._classes.items())

    def inline(self, svg: str, name: str, title: str, description: str) -> str:
        """Return a drawing as an element of HTML, and remember its styles.

        Parameters
        ----------
        svg : a whole file, as Matplotlib writes it.
        name : of the figure; letters, digits, `.`, `_` and `-`.
        title, description : what a screen reader says in place of the drawing.

        Raises
        ------
        xml.etree.ElementTree.ParseError : it is not XML.
        """
        root = ET.fromstring(svg)
        drawn = self._copy(root, name, set(_USED.findall(svg)))
        if found := _LENGTH.fullmatch(root.get("width", "")):
            rem = float(found[1]) * _PIXELS_PER_POINT / _PIXELS_PER_REM
            width = f"min-width:{_SMALLEST * rem:.4g}rem; max-width:{_LARGEST * rem:.4g}rem"
            drawn.set("class", self._class(width))
        drawn.set("role", "img")
        labels = {"title": title, "desc": description}
        drawn.set("aria-labelledby", " ".join(f"{name}-{part}" for part in labels))
        for place, (part, text) in enumerate(labels.items()):
            label = ET.Element(part, id=f"{name}-{part}")
            label.text = text
            drawn.insert(place, label)
        return ET.tostring(drawn, encoding="unicode")

    def _copy(self, element: ET.Element, name: str, used: Collection[str]) -> ET.Element:
        copy = ET.Element(element.tag.removeprefix(_SVG), dict(self._attributes(element, name)))
        if element.get("id") in used:
            copy.set("id", self._identifier(name, element.get("id")))
        copy.text = element.text if element.text and element.text.strip() else None
        for child in element:
            if child.tag.removeprefix(_SVG) in _DRAWN:
                drawn = self._copy(child, name, used)
                says_nothing = drawn.tag == "g" and not drawn.attrib and drawn.find("title") is None
                copy.extend(drawn if says_nothing else [drawn])
        return copy

    def _attributes(self, element: ET.Element, name: str) -> Iterator[tuple[str, str]]:
        """Yield the attributes of the copy of an element. A drawing's size is that of its place."""
        is_root = element.tag == f"{_SVG}svg"
        for key, value in element.attrib.items():
            if key == "style":
                if declarations := _declarations(value):
                    yield "class", self._class(self._renamed(declarations, name))
            elif key == "class" and value == _TOLD:
                yield key, value
            elif key == _LINK and value.startswith("#"):
                yield "href", f"#{self._identifier(name, value[1:])}"
            elif key == _LINK and value.startswith(_PICTURE):
                yield "href", value
            elif key == "transform" and _UNTURNED.fullmatch(value):
                continue
            elif key in _ATTRIBUTES and not (key in ("width", "height") and is_root):
                yield key, self._renamed(_shortened(key, " ".join(value.split())), name)

    def _class(self, style: str) -> str:
        return self._classes.setdefault(style, f"d{len(self._classes)}")

    def _identifier(self, name: str, identifier: str) -> str:
        number = len(self._identifiers)
        return self._identifiers.setdefault((name, identifier), f"i{number}")

    def _renamed(self, value: str, name: str) -> str:
        """Return a value with the identifiers of the page in place of those of its figure."""
        return _REFERENCE.sub(lambda found: f"url(#{self._identifier(name, found[1])})", value)


@cache
def _declarations(style: str) -> str:
    """Return the declarations of a style that can do no more than draw."""
    parts = (map(str.strip, declaration.partition(":")[::2]) for declaration in style.split(";"))
    return "; ".join(
        f"{key}:{value}"
        for key, value in parts
        if _PROPERTY.fullmatch(key) and _VALUE.fullmatch(value)
    )


def _shortened(key: str, value: str) -> str:
    """Round the numbers of an attribute, unless they scale something."""
    places = key in _PLACES or (key == "transform" and _MOVED.fullmatch(value))
    return _PRECISE.sub(_rounded, value) if places else value


def _rounded(found: re.Match) -> str:
    # Zero has no sign.
    return f"{round(float(found[0]), 2) + 0.0:.2f}".rstrip("0").rstrip(".")
