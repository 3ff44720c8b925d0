"""Read the files of Flickr8k, or simulate scenes that a probabilistic grammar describes."""

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.errors import InputError
from escala.core.files import write_json
from escala.core.text import read_text
from escala.data.captions import CAPTIONS, CAPTIONS_FILE, FEATURES_FILE, PATHS
from escala.data.settings import SIDES

WHERE_TO_GET = "docs/how-to/captions.md says where to get the files"
#: A scene has four parts. The values of a part are equally probable.
PARTS = {
    "attribute": ("black", "brown", "little", "red", "wet", "white"),
    "object": ("bird", "boy", "cat", "dog", "girl", "horse", "man", "woman"),
    "action": ("eats", "jumps", "runs", "sits", "sleeps", "waits"),
    "place": ("beach", "field", "park", "snow", "street", "water"),
}
#: The preposition before each place, in names of scenes and in captions.
PREPOSITIONS = dict(zip(PARTS["place"], ("on", "in", "in", "in", "on", "near"), strict=True))
_CONTINUOUS = ("eating", "jumping", "running", "sitting", "sleeping", "waiting")
#: Continuous form of each action.
CONTINUOUS = dict(zip(PARTS["action"], _CONTINUOUS, strict=True))
#: A synonym of some values.
SYNONYMS = {"little": "small", "boy": "kid", "dog": "puppy", "horse": "pony", "man": "guy",
            "woman": "lady", "street": "road", "water": "lake"}  # fmt: skip
#: The grammar: for each symbol, its expansions with their weights. Words in capitals are symbols.
#: `caption` adds the symbols of a scene.
GRAMMAR = {
    "CAPTION": [
        (5, "SUBJECT FINITE WHERE"),
        (2, "WHERE SUBJECT FINITE"),
        (2, "there is SUBJECT CONTINUOUS WHERE"),
        (2, "SUBJECT CONTINUOUS WHERE"),
        (1, "SUBJECT FINITE"),
    ],
    "SUBJECT": [(8, "ARTICLE ATTRIBUTE OBJECT"), (1, "ARTICLE OBJECT")],
    "ARTICLE": [(3, "a"), (1, "the")],
    "FINITE": [(1, "ACTION"), (1, "is CONTINUOUS")],
    "WHERE": [(4, "PREPOSITION the PLACE"), (1, "PREPOSITION a PLACE")],
}
#: Seed of the projection: datasets with equal numbers of features have features of equal meaning.
PROJECTION = 8091
#: Weights in the grammar of the word of a value, and of the synonym of this word.
WORD, SYNONYM = 3, 1

Rules = dict[str, Sequence[tuple[int, str]]]


def acquire(acquisition: Mapping[str, Any], inputs: Sequence[Path], folder: Path) -> None:
    """Simulate scenes, or read the lists and captions of Flickr8k, once for all splits.

    `inputs` are the user's files, in the order of `PATHS`. `folder`
    receives `captions.json`: for each side a list of pictures, with the `name` and the `captions`
    of each picture. For a simulation it also receives, for each side, `SIDE_features.npy`, float16
    (pictures, features).
    """
    if acquisition["type"] == "simulated":
        described = {}
        for number, side in enumerate(SIDES):
            random = np.random.default_rng([acquisition["seed"], number])
            pictures = acquisition["pictures"][side]
            described[side], features = simulate(acquisition, pictures, random)
            np.save(folder / FEATURES_FILE.format(side=side), features, allow_pickle=False)
    else:
        files = dict(zip(PATHS, inputs, strict=True))
        described = read_lists(files["tokens"], {side: files[side] for side in SIDES})
    write_json(folder / CAPTIONS_FILE, described)


def read_lists(tokens: Path, lists: Mapping[str, Path]) -> dict[str, list[dict]]:
    """Return the pictures of each side, in the order of its list of file names.

    Each picture has its `name` and its `captions`, in the order of the captions' numbers in the
    file `tokens`. Captions of a picture in no list are left out, because the file of Flickr8k
    describes a picture that its folder lacks. A picture in two lists, or without five captions, is
    refused.
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
    captions = read_captions(tokens)
    described = {
        side: [{"name": name, "captions": captions.get(name, [])} for name in listed]
        for side, listed in names.items()
    }
    for side, listed in described.items():
        few = [entry["name"] for entry in listed if len(entry["captions"]) != CAPTIONS]
        reason = f"is in the list {lists[side].name}, and does not have {CAPTIONS} captions"
        _refuse(tokens, few, reason, "add them, or remove it from the list")
    return described


def picture_files(described: Mapping[str, list[dict]], pictures: Path) -> dict[str, Path]:
    """Return the JPEG file of each picture of `read_lists` by name, in alphabetical order.

    A folder that lacks a picture is refused.
    """
    if not pictures.is_dir():
        raise InputError(pictures, pictures.name, "no such folder", WHERE_TO_GET)
    for side, listed in described.items():
        absent = [entry["name"] for entry in listed if not (pictures / entry["name"]).is_file()]
        reason = f"is in the list of the side {side}, and is not in the folder"
        _refuse(pictures, absent, reason, "add it, or remove it from the list")
    names = sorted(entry["name"] for listed in described.values() for entry in listed)
    return {name: pictures / name for name in names}


def read_captions(file: Path) -> dict[str, list[str]]:
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
                file, f"line {number}: {line}", reason, f"correct the line; {WHERE_TO_GET}"
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
    """Refuse pictures by name, if there are any; name the first and count the others."""
    if names:
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        raise InputError(where, names[0], f"{reason}{more}", remedy)


def scene_name(scene: Sequence[int]) -> str:
    """Return the name of a scene, such as `red dog runs in park`."""
    attribute, thing, action, place = _values(scene)
    return f"{attribute} {thing} {action} {PREPOSITIONS[place]} {place}"


def parse_scene(text: str, where: str) -> np.ndarray:
    """Return the numbers of a scene's values from its name, int64 (4,).

    The preposition may be absent. A text that is no scene is refused. `where` is the place of the
    text, for messages.
    """
    words = [word for word in text.lower().split() if word not in set(PREPOSITIONS.values())]
    if len(words) != len(PARTS):
        reason = f"is not a scene of {', '.join(PARTS)}"
        raise InputError(where, text, reason, "write for example: red dog runs in park")
    for word, (part, values) in zip(words, PARTS.items(), strict=True):
        if word not in values:
            raise InputError(
                where, word, f"is not a known {part} of a scene", f"use {', '.join(values)}"
            )
    return np.array([PARTS[part].index(word) for part, word in zip(PARTS, words, strict=True)])


def caption(scene: Sequence[int], random: np.random.Generator) -> str:
    """Return a caption of a scene, drawn from the grammar."""
    words = dict(zip(PARTS, _values(scene), strict=True))
    rules: Rules = GRAMMAR | {
        "CONTINUOUS": [(1, CONTINUOUS[words["action"]])],
        "PREPOSITION": [(1, PREPOSITIONS[words["place"]])],
    }
    for part, word in words.items():
        rules[part.upper()] = [(WORD, word), (SYNONYM, SYNONYMS.get(word, word))]
    return _expand("CAPTION", rules, random)


def project(scenes: np.ndarray, features: int) -> np.ndarray:
    """Return features, float64 (pictures, features), without noise, of scenes, int64 (pictures, 4).

    The four values of a scene, one-hot, are multiplied by a fixed matrix of normal random numbers
    with variance 1/4. So a feature has a variance of about 1 over all scenes.
    """
    widths = [len(values) for values in PARTS.values()]
    random = np.random.default_rng(PROJECTION)
    matrix = random.normal(0, len(PARTS) ** -0.5, (sum(widths), features))
    return matrix[scenes + np.cumsum([0, *widths[:-1]])].sum(axis=1)


def simulate(
    settings: Mapping[str, Any], pictures: int, random: np.random.Generator
) -> tuple[list[dict], np.ndarray]:
    """Return scenes, each with its `name` and `captions`, and features, float16 (pictures, …).

    `settings` are settings of the source: `captions_per_picture`, `features` and `noise`.
    """
    widths = [len(values) for values in PARTS.values()]
    scenes = random.integers(widths, size=(pictures, len(PARTS)))
    described = [
        {
            "name": scene_name(scene),
            "captions": [caption(scene, random) for _ in range(settings["captions_per_picture"])],
        }
        for scene in scenes
    ]
    features = project(scenes, settings["features"])
    noise = random.normal(0, settings["noise"], features.shape)
    return described, (features + noise).astype(np.float16)


def _values(scene: Sequence[int]) -> list[str]:
    """Return the words of a scene's four values."""
    return [values[number] for values, number in zip(PARTS.values(), scene, strict=True)]


def _expand(symbol: str, rules: Rules, random: np.random.Generator) -> str:
    """Return the words of a symbol: draw an expansion, and expand all symbols in that expansion."""
    weights, expansions = zip(*rules[symbol], strict=True)
    # `random.choice` with probabilities is far slower.
    ends = list(accumulate(weights))
    words = expansions[bisect(ends, random.random() * ends[-1])].split()
    return " ".join(_expand(word, rules, random) if word in rules else word for word in words)
