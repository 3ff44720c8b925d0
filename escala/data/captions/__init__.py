"""The kind `captions`: pictures, or simulated scenes, with captions."""

from pathlib import Path

from escala.core.errors import InputError
from escala.core.text import read_text
from escala.data.paths import expand_path
from escala.data.settings import SIDES, Settings, Size, paths_of

#: The paths of a source of Flickr8k, in the order in which acquisition gets them.
PATHS = ("tokens", *SIDES)
#: Captions of each picture in Flickr8k, and outputs of VGG16's layer fc2.
CAPTIONS, FC2 = 5, 4096
#: Files that acquisition writes: captions, and for a simulation the features of each side.
CAPTIONS_FILE, FEATURES_FILE = "captions.json", "{side}_features.npy"
#: Files that the extraction writes: features of pictures, the names of these pictures, and times.
FEATURES, NAMES, EXTRACTION = "features.npy", "names.json", "extraction.json"


def check(settings: Settings) -> None:
    """Refuse a list of pictures that two sides use."""
    source = settings["source"]
    sides: dict[str, str] = {}
    for side in () if source["type"] == "simulated" else SIDES:
        other = sides.setdefault(source[side], side)
        if other != side:
            reason = f"is the list of the side {other}"
            remedy = "name a list of other pictures for each side"
            raise InputError(f"source.{side}", source[side], reason, remedy)


def size(settings: Settings) -> Size:
    """Return the size by the settings, or by Flickr8k's list of training pictures if it exists."""
    source = settings["source"]
    if source["type"] == "simulated":
        numbers = source["features"] + source["captions_per_picture"] * settings["words"]
        return Size(source["pictures"]["train"], numbers)
    try:
        lines = read_text(paths_of(settings, "path")["train"]).split("\n")
        rows = sum(map(bool, map(str.strip, lines)))
    except InputError:
        rows = None
    return Size(rows, FC2 + CAPTIONS * settings["words"])


def photographs(settings: Settings) -> Path | None:
    """Return the folder of a dataset's photographs, or None if its pictures are scenes."""
    source = settings["source"]
    if source["type"] == "simulated":
        return None
    return Path(expand_path(source["pictures"], "source.pictures"))
