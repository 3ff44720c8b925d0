"""Simulate scenes, describe them by a probabilistic grammar, and compute features of them."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from escala.core.errors import InputError

#: The values of a scene's four parts. Those of a part are equally probable.
PARTS = {
    "attribute": ("black", "brown", "little", "red", "wet", "white"),
    "object": ("bird", "boy", "cat", "dog", "girl", "horse", "man", "woman"),
    "action": ("eats", "jumps", "runs", "sits", "sleeps", "waits"),
    "place": ("beach", "field", "park", "snow", "street", "water"),
}
#: Names of scenes and captions have a preposition before the place. A scene is known without it.
PREPOSITIONS = dict(zip(PARTS["place"], ("on", "in", "in", "in", "on", "near"), strict=True))
_CONTINUOUS = ("eating", "jumping", "running", "sitting", "sleeping", "waiting")
#: Continuous form of each action.
CONTINUOUS = dict(zip(PARTS["action"], _CONTINUOUS, strict=True))
#: A second word for some values.
SYNONYMS = {"little": "small", "boy": "kid", "dog": "puppy", "horse": "pony", "man": "guy",
            "woman": "lady", "street": "road", "water": "lake"}  # fmt: skip
#: The grammar: for each symbol, its expansions with their weights. Words in capitals are symbols.
#: `scene_rules` adds the symbols of a scene.
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
#: Seed of the projection: features have the same meaning in every dataset of as many features.
PROJECTION = 8091
#: Weight of a value's own word, and of its synonym.
OWN, OTHER = 3, 1

Rules = Mapping[str, Sequence[tuple[int, str]]]


def name_of(scene: Sequence[int]) -> str:
    """Return the name of a scene, such as `red dog runs in park`."""
    attribute, thing, action, place = _values(scene)
    return f"{attribute} {thing} {action} {PREPOSITIONS[place]} {place}"


def named(text: str, where: str) -> np.ndarray:
    """Return the scene of a name, int64 (4,); the preposition may be absent.

    Another text is refused; `where` is its place.
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
    return _expanded("CAPTION", GRAMMAR | scene_rules(scene), random)


def scene_rules(scene: Sequence[int]) -> Rules:
    """Return the rules of the grammar for the words of a scene."""
    words = dict(zip(PARTS, _values(scene), strict=True))
    return {
        "CONTINUOUS": [(1, CONTINUOUS[words["action"]])],
        "PREPOSITION": [(1, PREPOSITIONS[words["place"]])],
    } | {
        part.upper(): [(OWN, word), (OTHER, SYNONYMS.get(word, word))]
        for part, word in words.items()
    }


def projected(scenes: np.ndarray, features: int) -> np.ndarray:
    """Return the features of scenes, int64 (pictures, 4), without noise: float64 (pictures, …).

    A scene's four values, one-hot, are multiplied by a fixed matrix of normal numbers of variance
    1/4, so a feature has a variance of about 1 over all scenes.
    """
    widths = [len(values) for values in PARTS.values()]
    random = np.random.default_rng(PROJECTION)
    matrix = random.normal(0, len(PARTS) ** -0.5, (sum(widths), features))
    return matrix[scenes + np.cumsum([0, *widths[:-1]])].sum(axis=1)


def simulated(
    settings: Mapping[str, Any], pictures: int, random: np.random.Generator
) -> tuple[list[dict], np.ndarray]:
    """Return scenes, each with its `name` and `captions`, and features, float16 (pictures, …).

    `settings` are those of the source: `captions_per_picture`, `features` and `noise`.
    """
    widths = [len(values) for values in PARTS.values()]
    scenes = random.integers(widths, size=(pictures, len(PARTS)))
    many = range(settings["captions_per_picture"])
    described = [
        {"name": name_of(scene), "captions": [caption(scene, random) for _ in many]}
        for scene in scenes
    ]
    features = projected(scenes, settings["features"])
    noise = random.normal(0, settings["noise"], features.shape)
    return described, (features + noise).astype(np.float16)


def _values(scene: Sequence[int]) -> list[str]:
    return [values[number] for values, number in zip(PARTS.values(), scene, strict=True)]


def _expanded(symbol: str, rules: Rules, random: np.random.Generator) -> str:
    """Return the words of a symbol: one of its expansions, with all symbols in it expanded."""
    weights, expansions = zip(*rules[symbol], strict=True)
    # `random.choice` with probabilities is far slower.
    ends = list(accumulate(weights))
    words = expansions[bisect(ends, random.random() * ends[-1])].split()
    return " ".join(_expanded(word, rules, random) if word in rules else word for word in words)
