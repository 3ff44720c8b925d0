"""Put the SVG files of several figures, as Matplotlib writes them, into one HTML page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
#: Elements that draw nothing: on a page, a style would count for all of it.
_NOT_DRAWN = {f"{_SVG}metadata", f"{_SVG}style"}
#: The least and the largest width of a drawing on the page, by its size.
_SMALLEST, _LARGEST = 0.8, 1.25
_LENGTH, _PIXELS_PER_POINT, _PIXELS_PER_REM = re.compile(r"([\d.]+)pt"), 4 / 3, 16
#: What refers to an identifier, and the number of points with more digits than can be seen.
_USED, _REFERENCE = re.compile(r"""(?:url\(|href=")#([^)"]+)"""), re.compile(r"url\(#([^)]*)\)")
_PRECISE = re.compile(r"-?\d+\.\d{3,}(?:e[+-]?\d+)?")


class Drawings:
    """The figures of one page.

    A page allows no style attributes. Each style becomes a class, and equal styles of all figures
    share it. An identifier that a figure refers to becomes a short one, which no other figure has.
    Numbers are rounded to a hundredth of a point.
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
        svg : a whole file.
        name : of the figure; letters, digits, `.`, `_` and `-`.
        title, description : what a screen reader says in place of the drawing.

        Raises
        ------
        xml.etree.ElementTree.ParseError : it is not XML.
        """
        root, used = ET.fromstring(svg), set(_USED.findall(svg))

        def identifier(of_figure: str) -> str:
            number = len(self._identifiers)
            return self._identifiers.setdefault((name, of_figure), f"i{number}")

        def rename(value: str) -> str:
            return _REFERENCE.sub(lambda match: f"url(#{identifier(match[1])})", value)

        def round_place(match: re.Match) -> str:
            # Zero has no sign.
            return f"{round(float(match[0]), 2) + 0.0:.2f}".rstrip("0").rstrip(".")

        for element in root.iter():
            for child in [child for child in element if child.tag in _NOT_DRAWN]:
                element.remove(child)
        # The size of a drawing is that of its place.
        root.attrib.pop("height", None)
        if length := _LENGTH.fullmatch(root.attrib.pop("width", "")):
            rem = float(length[1]) * _PIXELS_PER_POINT / _PIXELS_PER_REM
            root.set(
                "style", f"min-width:{_SMALLEST * rem:.4g}rem; max-width:{_LARGEST * rem:.4g}rem"
            )
        for element in root.iter():
            element.tag = element.tag.removeprefix(_SVG)
            element.text, element.tail = (
                text if text and text.strip() else None for text in (element.text, element.tail)
            )
            attributes, element.attrib = element.attrib, {}
            for key, value in attributes.items():
                if key == _LINK:
                    is_inside = value.startswith("#")
                    element.set("href", f"#{identifier(value[1:])}" if is_inside else value)
                elif key == "style":
                    style = rename(value)
                    rule = self._classes.setdefault(style, f"d{len(self._classes)}")
                    element.set("class", f"{element.get('class', '')} {rule}".strip())
                elif key == "class":
                    element.set("class", f"{value} {element.get('class', '')}".strip())
                elif key == "id":
                    if value in used:
                        element.set("id", identifier(value))
                else:
                    value = " ".join(rename(value).split())
                    # What scales something needs all of its digits.
                    is_place = "scale" not in value and "matrix" not in value
                    element.set(key, _PRECISE.sub(round_place, value) if is_place else value)
        root.set("role", "img")
        labels = {"title": title, "desc": description}
        root.set("aria-labelledby", " ".join(f"{name}-{part}" for part in labels))
        for place, (part, text) in enumerate(labels.items()):
            label = ET.Element(part, id=f"{name}-{part}")
            label.text = text
            root.insert(place, label)
        return ET.tostring(root, encoding="unicode")
