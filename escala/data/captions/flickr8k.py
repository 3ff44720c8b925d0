"""Read the files of Flickr8k: lists of pictures, the file of their captions, and the pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from escala.core.errors import InputError
from escala.core.text import read_text
from escala.data.captions.settings import CAPTIONS

OFFICIAL = "docs/how-to/captions.md says where to get the files"


def sides(tokens: Path, lists: Mapping[str, Path]) -> dict[str, list[dict]]:
    """Return the pictures of each side, in the order of its list of file names.

    Each has its `name` and its `captions`, in the order of their numbers in the file `tokens`.
    Captions of pictures in no list are left out: the file of Flickr8k has some of a picture that is
    not in its folder. A picture in two lists, or without five captions, is refused.
    """
    names = {side: [line.strip() for _, line in _lines(file)] for side, file in lists.items()}
    known: dict[str, str] = {}
    for side, listed in names.items():
        if not listed:
            file = lists[side]
            raise InputError(
                file, file.name, "names no picture", "write one file name on each line"
            )
        for name in listed:
            if name in known:
                reason = f"is already in the list {lists[known[name]].name}"
                raise InputError(lists[side], name, reason, "keep it in one line of one list")
            known[name] = side
    captions = _captions(tokens)
    described = {
        side: [{"name": name, "captions": captions.get(name, [])} for name in listed]
        for side, listed in names.items()
    }
    for side, listed in described.items():
        few = [each["name"] for each in listed if len(each["captions"]) != CAPTIONS]
        reason = f"is in the list {lists[side].name}, and does not have {CAPTIONS} captions"
        _refuse(tokens, few, reason, "add them, or remove it from the list")
    return described


def files(described: Mapping[str, list[dict]], pictures: Path) -> dict[str, Path]:
    """Return the JPEG file of each picture that `sides` returned, by name, in alphabetical order.

    A folder without one of them is refused.
    """
    if not pictures.is_dir():
        raise InputError(pictures, pictures.name, "no such folder", OFFICIAL)
    for side, listed in described.items():
        absent = [each["name"] for each in listed if not (pictures / each["name"]).is_file()]
        reason = f"is in the list of the side {side}, and is not in the folder"
        _refuse(pictures, absent, reason, "add it, or remove it from the list")
    names = sorted(each["name"] for listed in described.values() for each in listed)
    return {name: pictures / name for name in names}


def _captions(file: Path) -> dict[str, list[str]]:
    """Return the captions of every picture in a file, by file name, in the order of their numbers.

    A line that is not in the format is refused.
    """
    numbered: dict[str, dict[int, str]] = {}
    for number, line in _lines(file):
        key, tab, caption = line.partition("\t")
        name, mark, place = key.rpartition("#")
        if not (tab and mark and name and place.isdecimal()):
            reason = "is not a file name, #, a number, a tab and a caption"
            raise InputError(
                file, f"line {number}: {line}", reason, f"correct the line; {OFFICIAL}"
            )
        if int(place) in numbered.setdefault(name, {}):
            reason, remedy = "is twice in the file", "give each caption of a picture its own "
            raise InputError(file, f"line {number}: {key}", reason, f"{remedy}number")
        numbered[name][int(place)] = caption
    return {
        name: [caption for _, caption in sorted(texts.items())] for name, texts in numbered.items()
    }


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the content of each line of a file that is not blank."""
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if line.strip():
            yield number, line


def _refuse(where: Path, names: list[str], reason: str, remedy: str) -> None:
    """Refuse pictures, if there are any, with the first of them and their number."""
    if names:
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        raise InputError(where, names[0], f"{reason}{more}", remedy)
