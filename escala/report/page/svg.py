"""Put the SVG files of several figures, as Matplotlib writes them, into one HTML page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
#: Elements that are removed: they draw nothing, and a style would apply to the whole page.
_NOT_DRAWN = {f"{_SVG}metadata", f"{_SVG}style"}
#: The least and the largest width of a drawing on the page, as multiples of its size.
_SMALLEST, _LARGEST = 0.8, 1.25
_LENGTH, _PIXELS_PER_POINT, _PIXELS_PER_REM = re.compile(r"([\d.]+)pt"), 4 / 3, 16
#: References to identifiers: all, and those in styles and attributes.
_USED, _REFERENCE = re.compile(r"""(?:url\(|href=")#([^)"]+)"""), re.compile(r"url\(#([^)]*)\)")
#: Numbers of points with more digits than can be seen.
_PRECISE = re.compile(r"-?\d+\.\d{3,}(?:e[+-]?\d+)?")


class Drawings:
    """The drawings of one page, with the classes and identifiers that they use.

    The page's security policy allows no style attributes. So each style becomes a class, which
    equal styles of all drawings share. An identifier to which a drawing refers becomes a short one
    that no other drawing has. Numbers are rounded to a hundredth of a point.
    """

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}
        self._identifiers: dict[tuple[str, str], str] = {}

    @property
    def rules(self) -> str:
        """The CSS rules of the classes so far."""
        return "".join(f".{name}{{{style}}}" for style, name in self._classes.items())

    def inline(self, svg: str, name: str, title: str, description: str) -> str:
        """Return a drawing as an element of HTML, and remember its styles.

        Parameters
        ----------
        svg : a whole file.
        name : begins the identifiers of title and description; letters, digits, `.`, `_` and `-`.
        title, description : what a screen reader says in place of the drawing.

        Raises
        ------
        xml.etree.ElementTree.ParseError : it is not XML.
        """
        root, used = ET.fromstring(svg), set(_USED.findall(svg))

        def identifier(in_file: str) -> str:
            number = len(self._identifiers)
            return self._identifiers.setdefault((name, in_file), f"i{number}")

        def rename_references(value: str) -> str:
            return _REFERENCE.sub(lambda match: f"url(#{identifier(match[1])})", value)

        def round_number(match: re.Match) -> str:
            # Adding zero removes the sign of a negative zero.
            return f"{round(float(match[0]), 2) + 0.0:.2f}".rstrip("0").rstrip(".")

        for element in root.iter():
            for child in [child for child in element if child.tag in _NOT_DRAWN]:
                element.remove(child)
        # On the page, the width of a drawing follows that of the window.
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
                    style = rename_references(value)
                    rule = self._classes.setdefault(style, f"d{len(self._classes)}")
                    element.set("class", f"{element.get('class', '')} {rule}".strip())
                elif key == "class":
                    element.set("class", f"{value} {element.get('class', '')}".strip())
                elif key == "id":
                    if value in used:
                        element.set("id", identifier(value))
                else:
                    value = " ".join(rename_references(value).split())
                    # Factors of a scale need all of their digits.
                    if "scale" not in value and "matrix" not in value:
                        value = _PRECISE.sub(round_number, value)
                    element.set(key, value)
        root.set("role", "img")
        labels = {"title": title, "desc": description}
        root.set("aria-labelledby", " ".join(f"{name}-{part}" for part in labels))
        for place, (part, text) in enumerate(labels.items()):
            label = ET.Element(part, id=f"{name}-{part}")
            label.text = text
            root.insert(place, label)
        return ET.tostring(root, encoding="unicode")
