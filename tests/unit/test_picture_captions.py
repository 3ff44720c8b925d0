"""Pictures with captions: words, simulated scenes, BLEU, and the settings."""

from __future__ import annotations

import csv
import itertools
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.translate.bleu_score import corpus_bleu

from escala.core.errors import InputError
from escala.core.files import read_json, sha256_file, write_json
from escala.data import KINDS
from escala.data.base import Arrays, Spec
from escala.data.captions import arrays, settings, source
from escala.data.captions.queries import queries
from escala.data.captions.words import END, PADDING, SPECIAL, START, bleu, counts, words_of
from escala.data.settings import derive
from escala.experiment.schema import complete as completed
from escala.experiment.schema import with_python_patterns

SIMULATED = {
    "type": "simulated",
    "pictures": {"train": 600, "validation": 10, "test": 200},
    "captions_per_picture": 5,
    "features": 256,
    "noise": 0.5,
    "seed": 1,
}
SCENES = {"provenance": "simulated", "words": 34, "vocabulary": None}
DIGEST = "0" * 64
FLICKR = {"provenance": "flickr8k", "words": 6, "vocabulary": None, "weights_sha256": DIGEST}
#: Weights of the n-grams in BLEU-1 to BLEU-4.
UNIFORM = [(1 / n,) * n for n in range(1, 5)]


# Words and numbers.


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A t-shirt's No. 4 .", ["a", "tshirts", "no"]),
        ("a b I a", ["a", "a"]),
        ("un CAFÉ “noir”", ["un", "café", "noir"]),
        (" . ", []),
    ],
)
def test_words_are_letters_in_lower_case(caption, words):
    assert words_of(caption) == words


# Simulated scenes.


def prepared_scenes(folder: Path, acquisition: dict, preparation: dict) -> dict:
    """Return the description of the split in `folder`, acquired and prepared."""
    (folder / "source").mkdir(parents=True)
    source.acquire(acquisition, [], folder / "source")
    return arrays.prepare("d", preparation, 4, {"source": folder / "source"}, folder)


@pytest.fixture(scope="module")
def scenes_split(tmp_path_factory) -> Path:
    """Return the folder of a split of simulated scenes, made without TensorFlow."""
    folder = tmp_path_factory.mktemp("scenes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorflow", None)
        prepared_scenes(folder, SIMULATED, SCENES)
    return folder


def named_pictures(split: Path) -> dict[str, list[str]]:
    """Return the names of the pictures of each side, by their rows."""
    with open(split / "pictures.tsv", newline="") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["side"], []).append(row["name"])
    return found


def test_a_row_is_a_picture_with_all_its_captions(scenes_split):
    found = Arrays(scenes_split)
    assert found.inputs == (
        Spec("features", (256,), "float16"),
        Spec("words", (5, 34), "uint16", below=len(found.description["vocabulary"])),
    )
    assert found.targets == Spec("labels", (5, 34), "uint16")
    assert {side: found.rows(side) for side in found.sides} == SIMULATED["pictures"]
    for side in found.sides:
        (_, words), targets = found.gather(side, slice(None))
        assert (words[..., 0] == START).all()
        goes_on = (targets != END) & (targets != PADDING)
        assert not goes_on[..., -1].any()
        np.testing.assert_array_equal(words[..., 1:][goes_on[..., :-1]], targets[goes_on])
        assert ((targets == END).sum(axis=-1) == 1).all()
        np.testing.assert_array_equal(words == PADDING, targets == PADDING)


def test_the_description_counts_and_scores_the_captions_of_the_grammar(scenes_split):
    described = Arrays(scenes_split).description
    pictures = read_json(scenes_split / "source" / "captions.json")["test"]
    captions = [[caption.split() for caption in each["captions"]] for each in pictures]
    expected = corpus_bleu(
        [others for _, *others in captions], [first for first, *_ in captions], weights=UNIFORM
    )
    assert [*described["baselines"]["grammar"].values()] == pytest.approx(expected)
    words = sum(len(words) for each in captions for words in each)
    counts = {"captions": 1000, "cut": 0, "empty": 0, "words": words, "unknown": 0}
    assert described["captions"]["test"] == counts
    names = named_pictures(scenes_split)
    fraction = sum(name in names["train"] for name in names["test"]) / 200
    assert described["trained_scenes"] == fraction
    assert described["inputs"][1]["below"] < 80


@pytest.mark.parametrize(("count", "refused"), [(252, False), (253, True)])
def test_words_are_as_many_as_there_are_numbers(count, refused, tmp_path, monkeypatch):
    """With numbers of one byte, four of which are no words."""
    monkeypatch.setattr(arrays, "DTYPE", np.uint8)
    few = {"pictures": {"train": 12, "validation": 10, "test": 10}}
    source.acquire(SIMULATED | few, [], tmp_path)
    described = read_json(tmp_path / "captions.json")
    words = [*map("".join, itertools.product(ascii_lowercase, repeat=2))][:count]
    for number, each in enumerate(described["train"]):
        each["captions"] = [" ".join(words[number::12])] * 5
    write_json(tmp_path / "captions.json", described)
    told = pytest.raises(InputError, match="257 different words, and 256 can be numbered")
    with told if refused else nullcontext():
        arrays.prepare("d", SCENES, 4, {"source": tmp_path}, tmp_path)


def test_a_seed_gives_the_same_scenes_and_another_seed_others(tmp_path):
    pictures = {"train": 30, "validation": 30, "test": 30}
    digests = []
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        (tmp_path / name).mkdir()
        source.acquire(SIMULATED | {"pictures": pictures, "seed": seed}, [], tmp_path / name)
        digests.append({file.name: sha256_file(file) for file in (tmp_path / name).iterdir()})
    assert digests[0] == digests[1]
    assert all(digests[0][file] != digests[2][file] for file in digests[0])
    assert len({digests[0][f"{side}_features.npy"] for side in pictures}) == 3


def test_a_query_of_a_scene_has_its_features_without_noise(scenes_split, tmp_path):
    split, names = Arrays(scenes_split), named_pictures(scenes_split)["train"]
    path = tmp_path / "scenes.txt"
    # The preposition, blank lines and capitals do not count.
    short = [" ".join(word for word in name.split() if len(word) > 2) for name in names[:300]]
    path.write_text("\n\n".join([*map(str.title, short), *names[300:]]))
    found = list(queries(path, split.description))
    assert [query.columns["scene"] for query in found] == names
    features = np.concatenate([query.inputs[0] for query in found])
    (train, _), _ = split.gather("train", slice(None))
    assert (features.dtype, features.shape) == (train.dtype, train.shape)
    noise = train.astype(np.float64) - features
    assert noise.mean() == pytest.approx(0, abs=0.01)
    assert noise.std(axis=1) == pytest.approx(0.5, rel=0.3)
    begun = np.zeros((1, 5, 34), np.uint16)
    begun[..., 0] = START
    np.testing.assert_array_equal(found[0].inputs[1], begun)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("red dog\n", "line 1: 'red dog': is not a scene of attribute, object, action, place"),
        ("\nred fish runs park", "line 2: 'fish': is not a known object of a scene"),
        (" \n\n", "scenes.txt: 'scenes.txt': names no scene"),
    ],
)
def test_a_file_or_a_line_that_names_no_scene_is_refused(scenes_split, tmp_path, text, message):
    path = tmp_path / "scenes.txt"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        list(queries(path, Arrays(scenes_split).description))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"provenance": "drawn"}, "data.provenance"),
        ({"provenance": "flickr8k"}, "data.weights_sha256"),
        ({"vocabulary": [*SPECIAL, "a"]}, "data.vocabulary"),
    ],
)
def test_a_model_whose_source_or_words_are_unknown_is_refused(scenes_split, tmp_path, change, key):
    (tmp_path / "scenes.txt").write_text("red dog runs in park")
    description = Arrays(scenes_split).description | change
    with pytest.raises(InputError, match=f"model.json: '{key}': is missing, or no"):
        next(queries(tmp_path / "scenes.txt", description))


# BLEU.

WORDS = st.lists(st.integers(0, 3), max_size=7)
CORPORA = st.lists(
    st.tuples(st.lists(WORDS, min_size=1, max_size=3), WORDS), min_size=1, max_size=4
)


@given(CORPORA)
def test_bleu_is_that_of_nltk(corpus):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        references, candidates = zip(*corpus, strict=True)
        expected = corpus_bleu(references, candidates, weights=UNIFORM)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = bleu(sum(counts(*each) for each in corpus))
    assert [*found] == ["bleu_1", "bleu_2", "bleu_3", "bleu_4"]
    # nltk takes the least positive float for a precision of 0.
    assert [*found.values()] == pytest.approx(np.broadcast_to(expected, 4), rel=1e-9, abs=1e-70)


# Settings.


def complete(given_settings: dict) -> dict:
    """Return settings of a dataset with the defaults of the kind's declaration."""
    schema = KINDS["captions"].declared["settings"] | {"$defs": {"name": {"pattern": "^[a-z]+$"}}}
    done = completed(given_settings, with_python_patterns(schema), "e.yaml")
    return done | {"kind": "captions", "split": {"seeds": [1]}}


def test_settings_decide_the_source_and_the_arrays_without_paths(monkeypatch):
    simulated = complete({"source": {"type": "simulated"}})
    assert derive("acquisition", simulated) == simulated["source"]
    assert derive("preparation", simulated) == SCENES
    assert derive("prepared_from", simulated, Path("d")) == {"source": Path("d/source")}
    assert derive("size", simulated) == (600, 256 + 5 * 34)
    files = {key: f"$OWN/{key}" for key in (*settings.PATHS, "pictures", "weights")}
    files |= {"type": "flickr8k", "weights_sha256": DIGEST}
    read = complete({"source": files, "vocabulary": 9})
    monkeypatch.setenv("OWN", "/own")
    assert derive("inputs", read) == [Path("/own", key) for key in settings.PATHS]
    assert derive("acquisition", read) == {"type": "flickr8k"}
    assert derive("extraction", read) == {key: Path("/own", key) for key in ("pictures", "weights")}
    assert derive("preparation", read) == FLICKR | {"words": 34, "vocabulary": 9}
    assert [*derive("prepared_from", read, Path("d"))] == ["source", "features"]
    assert derive("size", read) == (None, 4096 + 5 * 34)
