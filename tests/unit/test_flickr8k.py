"""Flickr8k's files, the features of its pictures, and what a model is given of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from escala.core.errors import InputError
from escala.core.files import read_json, sha256_file
from escala.data.base import Arrays
from escala.data.captions import arrays, settings, source, vgg16
from escala.data.captions.queries import queries
from escala.data.captions.words import END, SPECIAL, START, UNKNOWN
from escala.workflow import steps
from tests.unit.test_picture_captions import DIGEST, FLICKR, named_pictures

LISTS = {"train": ["c.jpg", "a.jpg", "b.jpg"], "validation": ["d.jpg"], "test": ["e.jpg", "f.jpg"]}


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


def prepared_flickr(files: dict[str, Path], folder: Path, digest=DIGEST, **changed: object) -> dict:
    """Return the description of the split in `folder`, acquired, extracted and prepared."""
    made = {name: folder / name for name in ("source", "features")}
    for path in made.values():
        path.mkdir(parents=True)
    source.acquire({"type": "flickr8k"}, [files[key] for key in settings.PATHS], made["source"])
    pictures = source.picture_files(read_json(made["source"] / "captions.json"), files["pictures"])
    vgg16.extract(pictures, files["weights"], digest, made["features"])
    return arrays.prepare("d", FLICKR | changed, 4, made, folder)


def test_flickr8ks_pictures_are_divided_by_its_lists(files, tmp_path):
    described = prepared_flickr(files, tmp_path / "split")
    assert described["provenance"] == "flickr8k" and described["weights_sha256"] == DIGEST
    assert "baselines" not in described
    found = Arrays(tmp_path / "split")
    assert named_pictures(tmp_path / "split") == LISTS
    for side, names in LISTS.items():
        (features, _), _ = found.gather(side, slice(None))
        for name, row in zip(names, features, strict=True):
            picture = Image.open(files["pictures"] / name).resize((224, 224), Image.BILINEAR)
            np.testing.assert_array_equal(row, np.asarray(picture).reshape(-1)[:6])


def test_only_words_of_training_captions_are_known_and_long_captions_are_cut(files, tmp_path):
    described = prepared_flickr(files, tmp_path / "split")
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
    few = prepared_flickr(files, tmp_path / "few", vocabulary=2)
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
        given = {key: files[key] for key in ("pictures", "weights")}
        steps.features(
            source=tmp_path / "made",
            output={"features": tmp_path / "made" / "features"},
            given=SimpleNamespace(weights_sha256=DIGEST),
            **given,
        )
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
        (lambda files: files["test"].write_text("\n"), "test.txt': names no picture"),
        (lambda files: files["tokens"].write_bytes(b"\xff\xfe"), "tokens.txt: 'line 1': is not"),
        (replaced("test", "f.jpg", "a.jpg"), "test.txt: 'a.jpg': is already in the list train.txt"),
        (replaced("tokens", "b.jpg#1\t", "b.jpg\t"), "is not a file name, #, a number, a tab"),
        (replaced("tokens", "b.jpg#1\t", "b.jpg#0\t"), "'line 7: b.jpg#0': is twice"),
        (replaced("tokens", "e.jpg", "x.jpg"), "test.txt, and does not have 5 captions."),
        (lambda files: [(files["pictures"] / f"{name}.jpg").unlink() for name in "abd"],
         "'a.jpg': is in the list of the side train, and is not in the folder (and 1 more)."),
        (lambda files: files.update(pictures=files["pictures"] / "none"), "none': no such folder"),
        (cut_short, "b.jpg: 'b.jpg': cannot be read as PNG or JPEG: "),
    ],
)  # fmt: skip
def test_files_that_do_not_serve_are_refused_before_a_feature_is_computed(
    files, tmp_path, monkeypatch, change, message
):
    monkeypatch.setattr(vgg16, "features", lambda *_: pytest.fail("they were computed"))
    change(files)
    with pytest.raises(InputError) as refused:
        prepared_flickr(files, tmp_path / "split")
    assert message in str(refused.value)
    assert not any((tmp_path / "split" / "features").iterdir())


def test_a_users_pictures_get_features_of_the_same_network(files, tmp_path, monkeypatch):
    description = prepared_flickr(files, tmp_path / "split")
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
    monkeypatch.undo()
    monkeypatch.setenv("ESCALA_VGG16", str(files["weights"]))
    with pytest.raises(InputError, match="let ESCALA_VGG16 name the weights that the training"):
        list(queries(files["pictures"], description))


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
    prepared_flickr(files, tmp_path / "split", sha256_file(files["weights"]))
    keras = tf.keras.utils
    for side, names in LISTS.items():
        pictures = [
            keras.load_img(
                files["pictures"] / name, target_size=(224, 224), interpolation="bilinear"
            )
            for name in names
        ]
        given = np.stack([keras.img_to_array(picture) for picture in pictures])
        expected = fc2.predict(tf.keras.applications.vgg16.preprocess_input(given), verbose=0)
        features = np.load(tmp_path / "split" / f"{side}_features.npy")
        assert features.dtype == np.float16 and expected.any()
        np.testing.assert_allclose(features, expected, rtol=2e-3, atol=1e-4)
    files["weights"].write_bytes(b"no weights")
    with pytest.raises(InputError, match="does not hold the weights of VGG16"):
        vgg16.network(files["weights"], sha256_file(files["weights"]), "get it")
