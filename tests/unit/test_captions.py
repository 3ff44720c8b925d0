"""Pictures with captions: words, simulated scenes, BLEU, Flickr8k, and figures of test rows."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import text_boxes
from hypothesis import given
from hypothesis import strategies as st
from nltk.translate.bleu_score import corpus_bleu, sentence_bleu
from PIL import Image

from escala.core.errors import InputError
from escala.core.files import read_json, sha256_file
from escala.data.base import Arrays, Spec
from escala.data.captions import PATHS, arrays, source, vgg16
from escala.data.captions.arrays import queries
from escala.data.captions.words import END, PADDING, SPECIAL, START, UNKNOWN, bleu, counts, words_of
from escala.data.splits import Side, write_split
from escala.report.figures import RunFiles, common
from escala.report.figures import captions as captions_figure

SIMULATED = {"type": "simulated", "pictures": {"train": 600, "validation": 10, "test": 200}}
SIMULATED |= {"captions_per_picture": 5, "features": 256, "noise": 0.5, "seed": 1}
SCENES = {"provenance": "simulated", "words": 34, "vocabulary": None}
DIGEST = "0" * 64
FLICKR = {"provenance": "flickr8k", "words": 6, "vocabulary": None, "weights_sha256": DIGEST}
#: Weights of the n-grams in BLEU-1 to BLEU-4.
UNIFORM = [(1 / n,) * n for n in range(1, 5)]


@pytest.fixture(scope="module")
def scenes_split(tmp_path_factory) -> Path:
    """Return the folder of a split of simulated scenes, made without TensorFlow."""
    folder = tmp_path_factory.mktemp("scenes")
    (folder / "source").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorflow", None)
        source.acquire(SIMULATED, [], folder / "source")
        arrays.prepare("d", SCENES, 4, {"source": folder / "source"}, folder)
    return folder


def named_pictures(split: Path) -> dict[str, list[str]]:
    """Return the names of the pictures of each side, by their rows."""
    rows = pd.read_csv(split / "pictures.tsv", sep="\t").groupby("side", sort=False)
    return {side: names["name"].tolist() for side, names in rows}


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
    captions = [[caption.split() for caption in picture["captions"]] for picture in pictures]
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
    for text, message in (
        ("red dog\n", "line 1: 'red dog': is not a scene of attribute, object, action, place"),
        ("\nred fish runs park", "line 2: 'fish': is not a known object of a scene"),
        (" \n\n", "scenes.txt: names no scene"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            list(queries(path, split.description))
    assert words_of("A t-shirt's No. 4 “CAFÉ” I .") == ["a", "tshirts", "no", "café"]


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


LISTS = {"train": ["c.jpg", "a.jpg", "b.jpg"], "validation": ["d.jpg"], "test": ["e.jpg", "f.jpg"]}


@pytest.fixture
def flickr(tmp_path, monkeypatch) -> dict[str, Path]:
    """Return files as Flickr8k has them, with six pictures; the network is a fake one."""
    random = np.random.default_rng(3)
    found = {name: tmp_path / f"{name}.txt" for name in ("pictures", "tokens", *LISTS)}
    found["weights"] = tmp_path / "weights.h5"
    found["pictures"].mkdir()
    lines = []
    for name in "abcdef":
        pixels = random.integers(0, 256, (9, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(found["pictures"] / f"{name}.jpg")
        # The captions of a picture need not be in the order of their numbers.
        lines += [f"{name}.jpg#1\tA {name * 2} dog that jumps very high ."]
        lines += [f"{name}.jpg#0\tA {name * 2} dog , seen in 2005 ."]
        lines += [f"{name}.jpg#{number}\tA dog runs ." for number in "432"]
    # Flickr8k has captions of a picture that is in no list and not in the folder.
    found["tokens"].write_text("\n".join([*lines, "g.jpg.1#0\tNo such picture .", ""]))
    for side, names in LISTS.items():
        found[side].write_text("".join(f"{name}\n" for name in names))
    found["weights"].write_bytes(b"no weights")
    # Its features are the first numbers of a picture.
    monkeypatch.setattr(
        vgg16, "network", lambda *_: lambda rows: rows.reshape(len(rows), -1)[:, :6]
    )
    monkeypatch.setattr(vgg16, "BATCH", 4)
    return found


def prepared_flickr(files: dict[str, Path], folder: Path, digest=DIGEST, **changed: object) -> dict:
    """Return the description of the split in `folder`, acquired, extracted and prepared."""
    made = {name: folder / name for name in ("source", "features")}
    for path in made.values():
        path.mkdir(parents=True)
    source.acquire({"type": "flickr8k"}, [files[key] for key in PATHS], made["source"])
    pictures = source.picture_files(read_json(made["source"] / "captions.json"), files["pictures"])
    vgg16.extract(pictures, files["weights"], digest, made["features"])
    return arrays.prepare("d", FLICKR | changed, 4, made, folder)


def test_flickr8ks_pictures_are_divided_by_its_lists(flickr, tmp_path):
    described = prepared_flickr(flickr, tmp_path / "split")
    assert described["provenance"] == "flickr8k" and described["weights_sha256"] == DIGEST
    assert "baselines" not in described
    found = Arrays(tmp_path / "split")
    assert named_pictures(tmp_path / "split") == LISTS
    for side, names in LISTS.items():
        (features, _), _ = found.gather(side, slice(None))
        for name, row in zip(names, features, strict=True):
            picture = Image.open(flickr["pictures"] / name).resize((224, 224), Image.BILINEAR)
            np.testing.assert_array_equal(row, np.asarray(picture).reshape(-1)[:6])


def test_only_words_of_training_captions_are_known_and_long_captions_are_cut(flickr, tmp_path):
    described = prepared_flickr(flickr, tmp_path / "split")
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
    few = prepared_flickr(flickr, tmp_path / "few", vocabulary=2)
    assert few["vocabulary"] == [*SPECIAL, "a", "dog"]
    assert few["captions"]["train"]["unknown"] == 27


def replaced(key: str, old: str, new: str) -> Callable[[dict[str, Path]], None]:
    """Return a change of one file: every `old` becomes `new`."""

    def change(files: dict[str, Path]) -> None:
        text = files[key].read_text()
        assert old in text
        files[key].write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda flickr: flickr["tokens"].unlink(), "tokens.txt: no such file"),
        (replaced("test", "f.jpg", "a.jpg"), "test.txt: 'a.jpg': is already in the list train.txt"),
        (replaced("tokens", "b.jpg#1\t", "b.jpg\t"), "is not a file name, #, a number, a tab"),
        (replaced("tokens", "e.jpg", "x.jpg"), "test.txt, and does not have 5 captions."),
        (lambda flickr: [(flickr["pictures"] / f"{name}.jpg").unlink() for name in "abd"],
         "'a.jpg': is in the list of the side train, and is not in the folder (and 1 more)."),
        (lambda flickr: os.truncate(flickr["pictures"] / "b.jpg", 99),
         "b.jpg: cannot be read as PNG or JPEG: "),
    ],
)  # fmt: skip
def test_files_that_do_not_serve_are_refused_before_a_feature_is_computed(
    flickr, tmp_path, monkeypatch, change, message
):
    monkeypatch.setattr(vgg16, "features", lambda *_: pytest.fail("they were computed"))
    change(flickr)
    with pytest.raises(InputError) as refused:
        prepared_flickr(flickr, tmp_path / "split")
    assert message in str(refused.value)
    assert not any((tmp_path / "split" / "features").iterdir())


def test_a_users_pictures_get_features_of_the_same_network(flickr, tmp_path, monkeypatch):
    description = prepared_flickr(flickr, tmp_path / "split")
    monkeypatch.delenv("ESCALA_VGG16", raising=False)
    with pytest.raises(InputError, match="ESCALA_VGG16: names no file of weights"):
        list(queries(flickr["pictures"], description))
    monkeypatch.setenv("ESCALA_VGG16", str(flickr["weights"]))
    found = list(queries(flickr["pictures"], description))
    assert [query.columns["file"] for query in found] == [f"{name}.jpg" for name in "abcdef"]
    (train, _), _ = Arrays(tmp_path / "split").gather("train", slice(None))
    [one] = queries(flickr["pictures"] / "c.jpg", description)
    for query, expected in ((found[0], train[1:2]), (one, train[:1])):
        np.testing.assert_array_equal(query.inputs[0], expected)
        assert query.inputs[0].dtype == np.float16 and query.inputs[1].shape == (1, 5, 6)
    with pytest.raises(InputError, match="no such file"):
        list(queries(flickr["pictures"] / "none.jpg", description))


def small_network(weights: None):
    """Return a network with VGG16's form of pictures and names of layers, and few weights."""
    from tensorflow.keras import Model, layers

    pictures = layers.Input((224, 224, 3))
    seen = layers.Conv2D(5, 32, strides=32, activation="relu")(pictures)
    fc1 = layers.Dense(7, "relu", name="fc1")(layers.Flatten()(seen))
    fc2 = layers.Dense(9, "relu", name="fc2", bias_initializer="random_uniform")(fc1)
    return Model(pictures, layers.Dense(3, "softmax", name="predictions")(fc2))


def test_features_are_those_of_kerass_own_network(flickr, tmp_path, monkeypatch):
    """The weights are drawn with a seed, and kept in a file as Keras publishes them."""
    import tensorflow as tf

    monkeypatch.undo()
    monkeypatch.setattr(tf.keras.applications, "VGG16", small_network)
    tf.keras.utils.set_random_seed(1)
    whole = tf.keras.applications.VGG16(weights=None)
    whole.save_weights(flickr["weights"])
    fc2 = tf.keras.Model(whole.input, whole.get_layer("fc2").output)
    prepared_flickr(flickr, tmp_path / "split", sha256_file(flickr["weights"]))
    keras = tf.keras.utils
    for side, names in LISTS.items():
        pictures = [
            keras.load_img(
                flickr["pictures"] / name, target_size=(224, 224), interpolation="bilinear"
            )
            for name in names
        ]
        given = np.stack([keras.img_to_array(picture) for picture in pictures])
        expected = fc2.predict(tf.keras.applications.vgg16.preprocess_input(given), verbose=0)
        features = np.load(tmp_path / "split" / f"{side}_features.npy")
        assert features.dtype == np.float16 and expected.any()
        np.testing.assert_allclose(features, expected, rtol=2e-3, atol=1e-4)
    flickr["weights"].write_bytes(b"no weights")
    with pytest.raises(InputError, match="does not hold the weights of VGG16"):
        vgg16.network(flickr["weights"], sha256_file(flickr["weights"]), "get it")


LENGTH, TEST = 34, 15
VOCABULARY = [*SPECIAL, "a", "red", "dog", "runs", "in", "the", "park", "uncharacteristically"]
NUMBERS = {word: number for number, word in enumerate(VOCABULARY)}
WRITTEN = "a red dog in the park"
REFERENCES = ["a red dog runs in the park", "the red dog in a park", ""]
#: As long as a caption can be, of words that are as long as any.
LONGEST = " ".join(["uncharacteristically"] * (LENGTH - 1))
PICTURES = [f"{row}_693b08cb0e.jpg" for row in range(TEST)]
RUN = {
    "strategy": "single", "layout": "1x1", "variant": "tuned", "network": "native",
    "workload": "caption-lstm", "dataset": "few", "status": "ok", "reason": None,
    "data": {"provenance": "flickr8k", "leaky": False},
    "evaluation": {"rows": TEST, "scores": {f"bleu_{n}": 0.9 - n / 10 for n in range(1, 5)}},
}  # fmt: skip


def numbered(*captions: str) -> np.ndarray:
    """Return the numbers of captions and what ends them, uint16 (captions, positions)."""
    found = np.zeros((len(captions), LENGTH), np.uint16)
    for row, caption in enumerate(captions):
        numbers = [NUMBERS[word] for word in caption.split()]
        found[row, : len(numbers) + 1] = [*numbers, END]
    return found


def write(folder: Path, rows: int = TEST, names: list[str] = PICTURES) -> tuple[Path, np.ndarray]:
    """Write a split whose second picture has the longest captions; return it and predictions."""
    targets = np.stack([numbered(*REFERENCES)] * rows)
    targets[1] = numbered(*[LONGEST] * len(REFERENCES))
    inputs = {"features": np.zeros((rows, 2), np.float16), "words": np.full_like(targets, START)}
    side = Side(inputs, targets)
    write_split(
        folder, {"train": side, "test": side}, kind="captions", name="few", seed=0,
        provenance="flickr8k", below={"words": len(VOCABULARY)}, vocabulary=VOCABULARY,
    )  # fmt: skip
    lines = [f"train\t{row}\ttrain-{names[row]}\n" for row in range(rows)]
    lines += [f"test\t{row}\t{names[row]}\n" for row in range(rows)]
    (folder / "pictures.tsv").write_text("".join(["side\trow\tname\n", *lines]))
    return folder, numbered(WRITTEN, LONGEST, *[WRITTEN] * (rows - 3), "")


def drawn(
    run: dict, predictions: np.ndarray | None, split: Path, pictures: Path | None = None
) -> tuple[str, list[np.ndarray]]:
    """Return the words and the pictures of a figure, whose texts neither overlap nor are cut."""
    file = None
    if predictions is not None:
        file = split.with_name("predictions.npy")
        np.save(file, predictions)
    with common.style():
        figure = captions_figure.draw(run, RunFiles(file, split, pictures))
        boxes = text_boxes.drawn_texts(figure)
    assert not text_boxes.overlaps(boxes)
    assert not text_boxes.cut_off(figure, boxes)
    shown = figure.axes[0].images if figure.axes else []
    at = [image.get_extent() for image in shown]
    left = [box.corners[:, 0].min() for box in boxes if box.text.startswith(("Run:", "Picture:"))]
    for _, right, *_ in at:
        assert figure.axes[0].transData.transform((right, 0))[0] < min(left)
    words = "\n".join(box.text for box in boxes)
    return words, [np.asarray(image.get_array()) for image in shown]


@pytest.mark.filterwarnings("ignore:\\nThe hypothesis contains 0 counts")
def test_photographs_are_shown_with_their_captions_and_the_bleu_of_each(tmp_path):
    """Eight of fifteen rows: 0, 2, …, 14. Their pictures are of different shapes and colours."""
    split, predictions = write(tmp_path / "split")
    for number, name in enumerate(PICTURES[:-2]):
        size = (400, 300) if number % 4 else (30, 400)
        Image.new("RGB", size, (10 * number, 0, 0)).save(tmp_path / name, "PNG")
    # One that is shown is damaged, and one is missing.
    (tmp_path / PICTURES[2]).write_bytes((tmp_path / PICTURES[2]).read_bytes()[:60])
    words, pictures = drawn(RUN, predictions, split, tmp_path)
    named = [line for line in words.split("\n") if line.startswith("Picture: ")]
    assert named == [f"Picture: {PICTURES[row]}" for row in range(0, TEST, 2)]
    assert [int(picture[0, 0, 0]) for picture in pictures] == [
        10 * row for row in (0, 4, 6, 8, 10, 12)
    ]
    assert words.count(f"Run: {WRITTEN}") == 7 and "Run: (no word)" in words
    # A reference without words is left out.
    assert words.count(f"– {REFERENCES[0]}") == 8 and words.count("–") == 16
    references = [reference.split() for reference in REFERENCES[:2]]
    scores = [sentence_bleu(references, WRITTEN.split(), [1 / n] * n) for n in range(1, 5)]
    listed = "BLEU-1 to BLEU-4: " + ", ".join(f"{score:.2f}" for score in scores)
    assert len({*scores}) > 1 and words.count(listed) == 7
    assert "BLEU-1 to BLEU-4: 0.00, 0.00, 0.00, 0.00" in words
    text = " ".join(words.split())
    for part in ("8 of 15 test pictures.", "0.80, 0.70, 0.60, 0.50.", "missing or damaged: 2."):
        assert part in text


def test_predictions_are_captions_only_if_they_are_numbers_of_words(tmp_path):
    split, predictions = write(tmp_path / "split")
    words, _ = drawn(RUN | {"status": "failed", "reason": "rank 1 was ended"}, None, split)
    why = "the run left no captions. The run ended as failed: rank 1 was ended."
    assert f"Unavailable: {why}" in " ".join(words.split())
    whole, pictures = drawn(RUN, predictions, split)
    assert whole.count("Scene: ") == 8 and not pictures
    assert drawn(RUN, predictions.astype(np.int64), split)[0] == whole
    too_large = predictions.copy()
    too_large[1, 0] = len(VOCABULARY)
    for wrong in (
        predictions.astype(np.float32),
        predictions.astype(np.int32) - 1,
        too_large,
        predictions[1:],
    ):
        words, _ = drawn(RUN, wrong, split)
        assert "Unavailable: the predictions are not numbers of words." in " ".join(words.split())
