"""Pictures with captions: simulated scenes, Flickr8k's files, what a model is given, and BLEU."""

from __future__ import annotations

import csv
import shutil
import sys
import warnings
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.translate.bleu_score import corpus_bleu
from PIL import Image

from escala.cache.sources import sources
from escala.core.errors import InputError
from escala.core.files import read_json, sha256_file
from escala.data import KINDS
from escala.data.base import Arrays, Spec
from escala.data.captions import arrays, flickr8k, scenes, settings, source, vgg16
from escala.data.captions.bleu import bleu, counts
from escala.data.captions.queries import queries
from escala.data.captions.words import (
    DTYPE,
    END,
    PADDING,
    SPECIAL,
    START,
    UNKNOWN,
    words_of,
)
from escala.experiment.schema import completed, with_python_patterns
from scripts import features as extraction

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
LISTS = {"train": ["c.jpg", "a.jpg", "b.jpg"], "validation": ["d.jpg"], "test": ["e.jpg", "f.jpg"]}


# Words and numbers.


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A t-shirt's No. 4 .", ["a", "tshirts", "no"]),
        ("Two dogs , running !", ["two", "dogs", "running"]),
        ("a b I a", ["a", "a"]),
        ("the 2nd of 3", ["the", "of"]),
        ("un CAFÉ “noir”", ["un", "café", "noir"]),
        (" . ", []),
    ],
)
def test_words_are_letters_in_lower_case(caption, words):
    assert words_of(caption) == words


# Simulated scenes.


def of_scenes(folder: Path, acquisition: dict, preparation: dict) -> dict:
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
        of_scenes(folder, SIMULATED, SCENES)
    return folder


def names_of(split: Path) -> dict[str, list[str]]:
    """Return the names of the pictures of each side, by their rows."""
    with open(split / "pictures.tsv", newline="") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    found: dict[str, list[str]] = {}
    for row in rows:
        of_side = found.setdefault(row["side"], [])
        assert int(row["row"]) == len(of_side)
        of_side.append(row["name"])
    return found


def test_a_row_is_a_picture_with_all_its_captions(scenes_split):
    found = Arrays(scenes_split)
    known = found.description["vocabulary"]
    assert found.sides == ("train", "validation", "test")
    assert found.inputs == (
        Spec("features", (256,), "float16"),
        Spec("words", (5, 34), "uint16", below=len(known)),
    )
    assert found.targets == Spec("labels", (5, 34), "uint16")
    assert "classes" not in found.description
    assert found.description["provenance"] == "simulated"
    assert [found.rows(side) for side in found.sides] == [600, 10, 200]
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
        [others for _, *others in captions],
        [first for first, *_ in captions],
        weights=[(1,), (1 / 2,) * 2, (1 / 3,) * 3, (1 / 4,) * 4],
    )
    assert [*described["baselines"]["grammar"].values()] == pytest.approx(expected)
    assert described["captions"]["test"] == {
        "captions": 1000,
        "cut": 0,
        "empty": 0,
        "words": sum(len(words) for each in captions for words in each),
        "unknown": 0,
    }
    names = names_of(scenes_split)
    share = sum(name in names["train"] for name in names["test"]) / 200
    assert described["trained_scenes"] == share
    assert len(described["vocabulary"]) < 80


def test_a_seed_gives_the_same_scenes_and_another_seed_others(tmp_path):
    pictures = {"train": 30, "validation": 30, "test": 30}
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        (tmp_path / name).mkdir()
        source.acquire(SIMULATED | {"pictures": pictures, "seed": seed}, [], tmp_path / name)
    digests = [
        {file.name: sha256_file(file) for file in (tmp_path / name).iterdir()}
        for name in ("one", "same", "other")
    ]
    assert digests[0] == digests[1]
    assert all(digests[0][file] != digests[2][file] for file in digests[0])
    features = [np.load(tmp_path / "one" / f"{side}_features.npy") for side in pictures]
    assert not any(np.array_equal(one, other) for one, other in pairwise(features))


def test_a_query_of_a_scene_has_its_features_without_noise(scenes_split, tmp_path):
    arrays_of, names = Arrays(scenes_split), names_of(scenes_split)["train"]
    path = tmp_path / "scenes.txt"
    # The preposition, blank lines and capitals do not count.
    short = [" ".join(word for word in name.split() if len(word) > 2) for name in names[:300]]
    path.write_text("\n\n".join([*map(str.title, short), *names[300:]]))
    found = list(queries(path, arrays_of.description))
    assert [query.columns["scene"] for query in found] == names
    features = np.concatenate([query.inputs[0] for query in found])
    (train, _), _ = arrays_of.gather("train", slice(None))
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
        ("\nred fish runs park", "line 2: 'fish': is no object of a scene"),
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
        ({"provenance": ["simulated"]}, "data.provenance"),
        ({"provenance": "flickr8k"}, "data.weights_sha256"),
        ({"vocabulary": None}, "data.vocabulary"),
        ({"vocabulary": [*SPECIAL, "a"]}, "data.vocabulary"),
    ],
)
def test_a_model_whose_source_or_words_are_unknown_is_refused(scenes_split, tmp_path, change, key):
    (tmp_path / "scenes.txt").write_text("red dog runs in park")
    description = Arrays(scenes_split).description | change
    with pytest.raises(InputError, match=f"model.json: '{key}': is missing, or no"):
        next(queries(tmp_path / "scenes.txt", description))


def test_only_the_extraction_of_features_takes_tensorflow():
    reached = {
        part: sources(module, chosen=[module]).packages
        for part in ("settings", "arrays", "bleu", "words", "source", "vgg16", "queries")
        for module in [f"escala.data.captions.{part}"]
    }
    with_it = {part for part, packages in reached.items() if "tensorflow" in packages}
    assert with_it == {"vgg16", "queries"}


# Flickr8k.


def fake_network(weights: Path, *_: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return a network whose features are the first numbers of a picture."""
    return lambda pictures: pictures.reshape(len(pictures), -1)[:, :6].astype(np.float32)


@pytest.fixture
def files(tmp_path, monkeypatch) -> dict[str, Path]:
    """Return files as Flickr8k has them, with six pictures; the network is a fake one."""
    random = np.random.default_rng(3)
    folder = tmp_path / "pictures"
    folder.mkdir()
    lines = []
    for name in "abcdef":
        pixels = random.integers(0, 256, (9, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.jpg")
        # The captions of a picture need not be in the order of their numbers.
        lines += [f"{name}.jpg#1\tA {name * 2} dog that jumps very high ."]
        lines += [f"{name}.jpg#0\tA {name * 2} dog , seen in 2005 ."]
        lines += [f"{name}.jpg#{number}\tA dog runs ." for number in "432"]
    found = {"pictures": folder, "tokens": tmp_path / "tokens.txt"}
    # Flickr8k has captions of a picture that is in no list and not in the folder.
    found["tokens"].write_text("\n".join([*lines, "g.jpg.1#0\tNo such picture .", ""]))
    for side, names in LISTS.items():
        found[side] = tmp_path / f"{side}.txt"
        found[side].write_text("".join(f"{name}\n" for name in names))
    found["weights"] = tmp_path / "weights.h5"
    found["weights"].write_bytes(b"no weights")
    monkeypatch.setattr(vgg16, "network", fake_network)
    monkeypatch.setattr(vgg16, "BATCH", 4)
    return found


def of_flickr(
    files: dict[str, Path], folder: Path, digest: str = DIGEST, **changed: object
) -> dict:
    """Return the description of the split in `folder`, acquired, extracted and prepared."""
    made = {name: folder / name for name in ("source", "features")}
    for path in made.values():
        path.mkdir(parents=True)
    source.acquire({"type": "flickr8k"}, [files[key] for key in settings.PATHS], made["source"])
    pictures = flickr8k.files(read_json(made["source"] / "captions.json"), files["pictures"])
    vgg16.extract(pictures, files["weights"], digest, made["features"])
    return arrays.prepare("d", FLICKR | changed, 4, made, folder)


def test_flickr8ks_pictures_are_divided_by_its_lists(files, tmp_path):
    described = of_flickr(files, tmp_path / "split")
    assert described["provenance"] == "flickr8k" and described["weights_sha256"] == DIGEST
    assert "baselines" not in described
    found = Arrays(tmp_path / "split")
    assert names_of(tmp_path / "split") == LISTS
    for side, names in LISTS.items():
        (features, _), _ = found.gather(side, slice(None))
        for name, row in zip(names, features, strict=True):
            picture = Image.open(files["pictures"] / name).resize((224, 224), Image.BILINEAR)
            np.testing.assert_array_equal(row, np.asarray(picture).reshape(-1)[:6])


def test_only_words_of_training_captions_are_known_and_long_captions_are_cut(files, tmp_path):
    described = of_flickr(files, tmp_path / "split")
    known = described["vocabulary"]
    # By their number in 15 captions, and then by the alphabet; `very high` was cut off.
    assert known[4:] == [*["a", "dog", "runs", "in", "jumps", "seen", "that", "aa", "bb", "cc"]]
    assert described["inputs"][1]["below"] == len(known)
    (_, words), targets = Arrays(tmp_path / "split").gather("test", slice(None))
    number = {word: place for place, word in enumerate(known)}
    unknown = [number["a"], UNKNOWN, number["dog"]]
    assert words[0, 0].tolist() == [START, *unknown, number["seen"], number["in"]]
    assert targets[0, 0].tolist() == [*unknown, number["seen"], number["in"], END]
    assert targets[0, 1].tolist() == [*unknown, number["that"], number["jumps"], END]
    assert targets[0, 2].tolist() == [number["a"], number["dog"], number["runs"], END, 0, 0]
    assert described["captions"]["test"] == {
        "captions": 10, "cut": 2, "empty": 0, "words": 38, "unknown": 4,
    }  # fmt: skip
    few = of_flickr(files, tmp_path / "few", vocabulary=2)
    assert few["vocabulary"] == [*SPECIAL, "a", "dog"]
    assert few["captions"]["train"]["unknown"] == 27


def test_only_other_pictures_or_weights_repeat_the_extraction(files, tmp_path, monkeypatch, capsys):
    """A corrected caption, and a picture on another side, do not."""
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))

    def is_made() -> bool:
        shutil.rmtree(tmp_path / "made", ignore_errors=True)
        (tmp_path / "made").mkdir()
        inputs = [files[key] for key in settings.PATHS]
        source.acquire({"type": "flickr8k"}, inputs, tmp_path / "made")
        options = {"source": tmp_path / "made", "output": tmp_path / "made" / "features"}
        options |= {key: files[key] for key in settings.PICTURES} | {"weights-sha256": DIGEST}
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        monkeypatch.setattr(sys, "argv", ["features", *words])
        extraction.main()
        assert np.load(tmp_path / "made" / "features" / "features.npy").shape == (6, 6)
        return "served from the store" not in capsys.readouterr().out

    assert is_made() and not is_made()
    replaced("tokens", "dog runs", "cat runs")(files)
    files["test"].write_text("f.jpg\n")
    files["train"].write_text("".join(f"{name}.jpg\n" for name in "acbe"))
    assert not is_made()
    files["weights"].write_bytes(b"other weights")
    assert is_made() and not is_made()
    Image.new("RGB", (9, 9), "red").save(files["pictures"] / "b.jpg")
    assert is_made()


def replaced(key: str, old: str, new: str) -> Callable[[dict[str, Path]], None]:
    """Return a change of one file: every `old` becomes `new`."""

    def change(files: dict[str, Path]) -> None:
        text = files[key].read_text()
        assert old in text
        files[key].write_text(text.replace(old, new))

    return change


def cut_short(files: dict[str, Path]) -> None:
    path = files["pictures"] / "b.jpg"
    path.write_bytes(path.read_bytes()[:-60])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: files["tokens"].unlink(), "tokens.txt': no such file"),
        (lambda files: files["test"].unlink(), "test.txt': no such file"),
        (lambda files: files["test"].write_text("\n"), "test.txt': names no picture"),
        (lambda files: files["tokens"].write_bytes(b"\xff\xfe"), "tokens.txt: 'line 1': is not"),
        (replaced("train", "c.jpg\n", "c.jpg\nc.jpg\n"), "'c.jpg': is already in the list train"),
        (replaced("test", "f.jpg", "a.jpg"), "test.txt: 'a.jpg': is already in the list train.txt"),
        (replaced("tokens", "b.jpg#1\t", "b.jpg#1 "), "'line 6: b.jpg#1 A bb dog"),
        (replaced("tokens", "b.jpg#1\t", "b.jpg\t"), "is not a file name, #, a number, a tab"),
        (replaced("tokens", "b.jpg#1\t", "b.jpg#0\t"), "'line 7: b.jpg#0': stands twice"),
        (replaced("tokens", "e.jpg#1\t", "x.jpg#1\t"), "'e.jpg': is in the list test.txt"),
        (replaced("tokens", "e.jpg", "x.jpg"), "test.txt, and does not have 5 captions."),
        (lambda files: [(files["pictures"] / f"{name}.jpg").unlink() for name in "abd"],
         "'a.jpg': is in the list of the side train, and is not in the folder (and 1 more)."),
        (lambda files: files.update(pictures=files["pictures"] / "none"), "none': no such folder"),
        (lambda files: (files["pictures"] / "b.jpg").write_bytes(b""), "'b.jpg': is empty"),
        (cut_short, "b.jpg: 'b.jpg': cannot be read as PNG or JPEG: "),
    ],
)  # fmt: skip
def test_files_that_do_not_serve_are_refused_before_a_feature_is_computed(
    files, tmp_path, monkeypatch, change, message
):
    monkeypatch.setattr(vgg16, "features", lambda *_: pytest.fail("they were computed"))
    change(files)
    with pytest.raises(InputError) as refused:
        of_flickr(files, tmp_path / "split")
    assert message in str(refused.value)
    assert not any((tmp_path / "split" / "features").iterdir())


def test_other_weights_than_those_of_the_training_features_are_refused(
    files, tmp_path, monkeypatch
):
    description = of_flickr(files, tmp_path / "split")
    monkeypatch.undo()
    monkeypatch.setenv("ESCALA_VGG16", str(files["weights"]))
    with pytest.raises(InputError, match="let ESCALA_VGG16 name the weights that the training"):
        list(queries(files["pictures"], description))


def test_a_users_pictures_get_features_of_the_same_network(files, tmp_path, monkeypatch):
    description = of_flickr(files, tmp_path / "split")
    monkeypatch.delenv("ESCALA_VGG16", raising=False)
    with pytest.raises(InputError, match="ESCALA_VGG16: names no file of weights"):
        list(queries(files["pictures"], description))
    monkeypatch.setenv("ESCALA_VGG16", str(files["weights"]))
    found = list(queries(files["pictures"], description))
    assert [query.columns["file"] for query in found] == [f"{name}.jpg" for name in "abcdef"]
    (train, _), _ = Arrays(tmp_path / "split").gather("train", slice(None))
    np.testing.assert_array_equal(found[0].inputs[0], train[1:2])
    assert found[0].inputs[0].dtype == np.float16
    [one] = queries(files["pictures"] / "c.jpg", description)
    np.testing.assert_array_equal(one.inputs[0], train[:1])
    assert one.inputs[1].shape == (1, 5, 6)
    with pytest.raises(InputError, match="no such file"):
        list(queries(files["pictures"] / "none.jpg", description))


def small_network(weights: None):
    """Return a network with VGG16's form of pictures and names of layers, and few weights."""
    from tensorflow.keras import Model, layers

    pictures = layers.Input((224, 224, 3))
    seen = layers.Conv2D(5, 32, strides=32, activation="relu")(pictures)
    fc1 = layers.Dense(7, "relu", name="fc1")(layers.Flatten()(seen))
    fc2 = layers.Dense(9, "relu", name="fc2", bias_initializer="random_uniform")(fc1)
    return Model(pictures, layers.Dense(3, "softmax", name="predictions")(fc2))


def test_features_are_those_of_kerass_own_network(files, tmp_path, monkeypatch):
    """The weights are drawn with a seed, and kept in a file as Keras publishes them."""
    import tensorflow as tf

    monkeypatch.undo()
    monkeypatch.setattr(tf.keras.applications, "VGG16", small_network)
    tf.keras.utils.set_random_seed(1)
    whole = tf.keras.applications.VGG16(weights=None)
    whole.save_weights(files["weights"])
    fc2 = tf.keras.Model(whole.input, whole.get_layer("fc2").output)
    of_flickr(files, tmp_path / "split", sha256_file(files["weights"]))
    for side, names in LISTS.items():
        features = np.load(tmp_path / "split" / f"{side}_features.npy")
        assert features.shape == (len(names), *fc2.output_shape[1:])
        assert features.dtype == np.float16
        for name, row in zip(names, features, strict=True):
            picture = tf.keras.utils.load_img(
                files["pictures"] / name, target_size=(224, 224), interpolation="bilinear"
            )
            given_to = tf.keras.applications.vgg16.preprocess_input(
                tf.keras.utils.img_to_array(picture)[None]
            )
            expected = fc2.predict(given_to, verbose=0)[0]
            assert expected.any()
            np.testing.assert_allclose(row, expected, rtol=2e-3, atol=1e-4)
    files["weights"].write_bytes(b"no weights")
    with pytest.raises(InputError, match="does not hold the weights of VGG16"):
        vgg16.network(files["weights"], sha256_file(files["weights"]), "get it")


# BLEU.

WORDS = st.lists(st.integers(0, 3), max_size=7)
CORPORA = st.lists(
    st.tuples(st.lists(WORDS, min_size=1, max_size=3), WORDS), min_size=1, max_size=4
)
#: Weights of the n-grams in BLEU-1 to BLEU-4.
UNIFORM = [(1 / n,) * n for n in range(1, 5)]


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
    return completed(given_settings, with_python_patterns(schema), "e.yaml")


FILES = {key: f"$OWN/{key}" for key in (*settings.PATHS, *settings.PICTURES)}


def test_settings_decide_the_source_and_the_arrays_without_paths(monkeypatch):
    simulated = complete({"source": {"type": "simulated"}})
    assert simulated["source"] == SIMULATED | {
        "pictures": {"train": 600, "validation": 100, "test": 200}
    }
    assert settings.acquisition(simulated) == simulated["source"]
    assert settings.preparation(simulated) == SCENES
    size = settings.size(simulated)
    assert size.train_rows == 600 and size.inputs[0]["shape"] == (256,)
    read = complete(
        {"source": {"type": "flickr8k", **FILES, "weights_sha256": DIGEST}, "vocabulary": 9}
    )
    monkeypatch.setenv("OWN", "/own")
    assert settings.inputs(read) == [Path("/own", key) for key in settings.PATHS]
    assert settings.acquisition(read) == {"type": "flickr8k"}
    assert settings.extraction(read) == {key: f"/own/{key}" for key in ("pictures", "weights")}
    assert settings.preparation(read) == FLICKR | {"words": 34, "vocabulary": 9}
    size = settings.size(read)
    assert size.train_rows is None and size.inputs[0]["shape"] == (4096,)
    assert size.inputs[1]["below"] == 4 + 9 and size.outputs == (5, 34)
    assert size.untimed == "the features of the pictures"
    assert settings.size(read | {"vocabulary": None}).outputs is None
    monkeypatch.delenv("OWN")
    assert settings.size(read).train_rows is None


def test_the_settings_know_the_number_of_words_of_the_grammar(scenes_split):
    """Every word that its rules can write, for every scene."""
    numbers = ([place % 6, place, place % 6, place % 6] for place in range(8))
    every = [scenes.GRAMMAR, *map(scenes.scene_rules, numbers)]
    expansions = (each for rules in every for each in chain.from_iterable(rules.values()))
    words = {word for _, text in expansions for word in text.split() if word.islower()}
    assert len(words) == settings.GRAMMAR_WORDS
    assert len(SPECIAL) == settings.SPECIAL_NUMBERS
    assert np.dtype(settings.DTYPE) == DTYPE
    described = Arrays(scenes_split).description
    found = settings.size(complete({"source": {"type": "simulated"}}))
    assert described["inputs"][1]["below"] == found.inputs[1]["below"]
