"""The captioning network: equal to the published one, its search for captions, and its scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from nltk.translate.bleu_score import corpus_bleu
from tensorflow.keras import layers

from escala.data.base import Arrays, Spec
from escala.data.splits import Side, write_split
from escala.engines.tensorflow.fast import dense
from escala.engines.tensorflow.functions import Functions
from escala.training.epoch import validate
from escala.workloads.caption_lstm import model as work
from escala.workloads.caption_lstm import scores
from escala.workloads.models import PREDICTION_ROWS, rows_at_once

FEATURES, CAPTIONS, LENGTH, V = 6, 2, 5, 9
SETTINGS = {"width": 7, "dropout": 0.0, "optimizer": "adam", "beam": 1}
START, END = 1, 2
LAYERS = ("picture", "embedding", "lstm", "merged", "next_word")


def specs(features=FEATURES, captions=CAPTIONS, length=LENGTH, below=V) -> tuple[Spec, Spec]:
    return (
        Spec("features", (features,), "float16"),
        Spec("words", (captions, length), "uint16", below),
    )


def build(settings=SETTINGS, scale=1.0, **sizes: int) -> tf.keras.Model:
    """Return a network with weights drawn at random, enlarged so that its probabilities differ."""
    tf.keras.utils.set_random_seed(1)
    inputs = specs(**sizes)
    network = work.build(inputs, inputs[1].shape, settings, {})
    network.set_weights([scale * weight for weight in network.get_weights()])
    return network


def rows(count: int, below: int = V) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, words and next words of pictures with captions of 1 to LENGTH - 1 words."""
    random = np.random.default_rng(2)
    features = random.normal(size=(count, FEATURES)).astype(np.float16)
    words = np.zeros((count, CAPTIONS, LENGTH), np.uint16)
    targets = np.zeros_like(words)
    for caption in np.ndindex(count, CAPTIONS):
        spoken = random.integers(4, below, random.integers(1, LENGTH))
        words[caption][: len(spoken) + 1] = [START, *spoken]
        targets[caption][: len(spoken) + 1] = [*spoken, END]
    return features, words, targets


def published(width: int) -> tf.keras.Model:
    picture, prefix = layers.Input((FEATURES,)), layers.Input((LENGTH,))
    scene = layers.Dense(width, "relu", name="picture")(layers.Dropout(0.5)(picture))
    embedded = layers.Embedding(V, width, mask_zero=True, name="embedding")(prefix)
    state = layers.LSTM(width, name="lstm")(layers.Dropout(0.5)(embedded))
    hidden = layers.Dense(width, "relu", name="merged")(layers.add([scene, state]))
    next_word = layers.Dense(V, "softmax", name="next_word")(hidden)
    return tf.keras.Model([picture, prefix], next_word)


@pytest.fixture(scope="module")
def networks() -> tuple[tf.keras.Model, tf.keras.Model, list[np.ndarray]]:
    """The network, the published one, and initial weights. To make an LSTM takes seconds."""
    network = build()
    return network, published(7), network.get_weights()


def prefixes(features, words, targets) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Return a row for each prefix of a caption, padded in front, its next word and its place."""
    places = np.argwhere(targets)
    padded = np.zeros((len(places), LENGTH), np.int32)
    for row, (picture, caption, last) in zip(padded, places, strict=True):
        row[LENGTH - last - 1 :] = words[picture, caption, : last + 1]
    pictures = features[places[:, 0]].astype(np.float32)
    return [pictures, padded], targets[tuple(places.T)].astype(np.int32), places


def copied(network: tf.keras.Model, to: tf.keras.Model) -> tf.keras.Model:
    for name in LAYERS:
        to.get_layer(name).set_weights(network.get_layer(name).get_weights())
    return to


def test_parameters_are_those_of_the_published_network():
    settings = {**SETTINGS, "width": 256, "dropout": 0.5}
    network = build(settings, features=4096, captions=5, length=34, below=1000)
    assert network.count_params() == 513 * 1000 + 1_639_936
    # The layers after the LSTM have as many rows as a batch has words.
    assert [layer.name for layer, _ in dense.products(network)] == ["picture"]


def test_one_pass_gives_what_the_published_network_gives_for_each_prefix(networks):
    (network, keras, weights), (features, words, targets) = networks, rows(4)
    network.set_weights([2.0 * each for each in weights])
    inputs, _, places = prefixes(features, words, targets)
    expected = copied(network, keras)(inputs, training=False).numpy()
    outputs = tf.nn.softmax(network([features, words], training=False)).numpy()
    assert expected.max(axis=1).std() > 0.01, "probabilities that differ between prefixes"
    np.testing.assert_allclose(outputs[tuple(places.T)], expected, atol=1e-5)


def test_dropout_is_of_the_features_and_of_the_embedded_words_and_only_in_training(networks):
    network, (features, words, _) = build({**SETTINGS, "dropout": 0.5}), rows(4)
    first, second = (network([features, words], training=True).numpy() for _ in range(2))
    assert not np.allclose(first, second)
    plain = copied(network, networks[0])([features, words], training=False)
    np.testing.assert_allclose(network([features, words], training=False), plain, rtol=1e-6)
    dropped = [layer for layer in network.layers if isinstance(layer, layers.Dropout)]
    readers = [layer.outbound_nodes[0].layer.name for layer in dropped]
    assert {*readers} == {"picture", "lstm"} and {layer.rate for layer in dropped} == {0.5}


def test_steps_are_those_of_kerass_own_fit_to_a_row_for_each_prefix(networks):
    (network, keras, weights), (features, words, targets) = networks, rows(8)
    network.set_weights(weights)
    copied(network, keras)
    inputs, next_words, _ = prefixes(features, words, targets)
    for layer in keras.layers:
        layer.rate = 0.0
    summed = tf.keras.losses.SparseCategoricalCrossentropy(reduction="sum")
    keras.compile(tf.keras.optimizers.Adam(0.01), summed, run_eagerly=True)
    history = keras.fit(inputs, next_words, batch_size=len(next_words), epochs=3, verbose=0)
    optimizer, losses = work.optimizer(SETTINGS, 0.01, {}), []
    for _ in range(3):
        with tf.GradientTape() as tape:
            row_losses = work.row_losses(
                targets, network([features, words], training=True), SETTINGS
            )
            loss = tf.reduce_sum(row_losses)
        losses.append(float(loss))
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
    assert losses == pytest.approx(history.history["loss"], rel=1e-4)
    assert losses[2] < losses[0]
    for name in LAYERS:
        matches = [net.get_layer(name).get_weights() for net in (network, keras)]
        for one, other in zip(*matches, strict=True):
            assert np.isclose(one, other, rtol=1e-3, atol=1e-4).mean() > 0.99


def test_the_optimizer_is_that_of_the_settings():
    chosen = work.optimizer({**SETTINGS, "optimizer": "rmsprop"}, 0.01, {})
    assert isinstance(chosen, tf.keras.optimizers.RMSprop) and float(chosen.learning_rate) > 0.009


def test_right_is_the_fraction_of_next_words():
    targets = np.array([[[4, 5, END, 0], [6, END, 0, 0]], [[0] * 4, [0] * 4]], np.uint16)
    outputs = np.zeros((2, 2, 4, V), np.float32)
    outputs[0, 0, [0, 1, 2], [4, 7, END]] = 1
    np.testing.assert_allclose(work.correct(targets, outputs), [2 / 5, 0])


# The reference for the search: log-probabilities by one pass of the whole network for each prefix.


def following(network: Callable, features: np.ndarray, caption: tuple) -> dict[int, float]:
    words = np.zeros((1, 1, LENGTH), np.uint16)
    words[0, 0, : len(caption) + 1] = [START, *caption]
    logits = network([features[None], words])[0, 0, len(caption)].numpy()
    allowed = [END, *range(4, len(logits))]
    normalised = logits[allowed] - np.log(np.exp(logits[allowed]).sum())
    return dict(zip(allowed, normalised.tolist(), strict=True))


def searched(network: Callable, features: np.ndarray, beam: int) -> tuple[int, ...]:
    follow = cache(partial(following, network, features))
    kept = [((), 0.0)]
    for _ in range(LENGTH):
        longer = []
        for caption, score in kept:
            ended = caption[-1:] == (END,)
            choices = {None: 0.0} if ended else follow(caption)
            for word, gain in choices.items():
                longer.append((caption if word is None else (*caption, word), score + gain))
        kept = sorted(longer, key=lambda each: -each[1])[:beam]
    return kept[0][0]


def generated(network: tf.keras.Model, features: np.ndarray, beam: int) -> list[tuple[int, ...]]:
    given = [features, np.zeros((len(features), 1, LENGTH), np.uint16)]
    found = work.generate(network, given, {**SETTINGS, "beam": beam})
    assert (found.dtype, found.shape) == (tf.uint16, (len(features), LENGTH))
    captions = [tuple(row.tolist()) for row in found.numpy()]
    written = [tuple(number for number in row if number) for row in captions]
    assert all(END not in words[:-1] for words in written)
    assert captions == [words + (0,) * (LENGTH - len(words)) for words in written]
    return written


@pytest.mark.parametrize("beam", [3, pytest.param(64, marks=pytest.mark.sweep)])
def test_captions_are_those_of_a_beam_search_in_plain_python(beam):
    network, (features, _, _) = build(scale=4.0, captions=1), rows(5)
    found = generated(network, features, beam)
    compiled = tf.function(network, reduce_retracing=True)
    assert found == [searched(compiled, each, beam) for each in features]
    assert len(set(found)) > 1


@pytest.fixture(scope="module")
def learnt(tmp_path_factory) -> tuple[tf.keras.Model, Callable, Arrays]:
    """A network that has learnt the captions of eight pictures by heart, and these."""
    folder = tmp_path_factory.mktemp("captions")
    features, words, targets = rows(8, below=30)
    side = Side({"features": features, "words": words}, targets)
    write_split(
        folder, {"train": side, "test": side}, kind="captions", name="few", seed=0,
        provenance="simulated", below={"words": 30}, vocabulary=[f"w{n}" for n in range(30)],
    )  # fmt: skip
    settings = {**SETTINGS, "width": 32}
    data = Arrays(folder)
    tf.keras.utils.set_random_seed(3)
    network = work.build(data.inputs, data.targets.shape, settings, {})
    optimizer = work.optimizer(settings, 0.02, {})

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            outputs = network([features, words], training=True)
            loss = tf.reduce_sum(work.row_losses(targets, outputs, settings))
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))

    for _ in range(120):
        step()
    specs = (*data.inputs, data.targets)
    evaluate = Functions(work, settings).compile_evaluation(network, specs, tf.reduce_sum)
    return network, evaluate, data


def epoch_scores(evaluate, data, part=(0, 1), total=lambda values: values, module=scores) -> dict:
    def evaluated(inputs, targets):
        return evaluate(*inputs, targets)

    group, (process, processes) = SimpleNamespace(total=total), part
    place = SimpleNamespace(process=process, processes=processes)
    engine = SimpleNamespace(group=group, place=place, evaluate=evaluated, rows_at_once=256)
    return validate(engine, data, "test", module)


@pytest.mark.filterwarnings("ignore:\\nThe hypothesis contains 0 counts")
def test_scores_of_an_epoch_are_those_of_the_corpus_however_its_rows_are_divided(learnt):
    network, evaluate, data = learnt
    alone = epoch_scores(evaluate, data)["scores"]
    sums: list[np.ndarray] = []
    for rank in range(9):
        epoch_scores(evaluate, data, (rank, 9), lambda values: sums.append(values) or values)
    assert len(sums) == 9, "eight ranks with a row, and one without"
    together = epoch_scores(evaluate, data, (0, 9), lambda values: np.sum(sums, axis=0))["scores"]
    assert together == pytest.approx(alone) and alone["bleu_1"] > 0.9

    (features, words), targets = data.gather("test", slice(None))
    written = work.generate(network, [features, words], SETTINGS).numpy()
    references = [[[n for n in c if n not in (0, END)] for c in row] for row in targets.tolist()]
    captions = [[n for n in row if n not in (0, END)] for row in written.tolist()]
    found = scores.score(targets, written, data.description)
    for n in range(1, 5):
        assert alone[f"bleu_{n}"] == pytest.approx(corpus_bleu(references, captions, [1 / n] * n))
        # The captions of other pictures are a control.
        shuffled = corpus_bleu(references, [captions[-1], *captions[:-1]], [1 / n] * n)
        assert found[f"shuffled_bleu_{n}"] == pytest.approx(shuffled, abs=1e-70)
    one = scores.score(targets[:1], written[:1], data.description)
    assert not any("shuffled" in name for name in one)
    shown = scores.columns(written[:1], data.description)
    assert shown == {"predicted": " ".join(f"w{n}" for n in written[0] if n > END)}


@pytest.mark.parametrize(
    ("name", "module", "reason"),
    [
        ("own", {"counts": lambda *_: np.zeros(8)}, r"`counts` gives the shape \(8,\) for 8 rows"),
        ("bleu_1", {}, "score bleu_1 is given by row_scores and by scores_of"),
        pytest.param(
            "own",
            {"scores_of": lambda sums: {"bleu": np.nan}},
            "score bleu is nan: `scores_of` mu",
            marks=pytest.mark.sweep,
        ),
        pytest.param("loss", {}, "the score loss, which is a reserved", marks=pytest.mark.sweep),
    ],
)
def test_scores_that_are_no_numbers_of_rows_or_share_a_name_end_the_training(
    learnt, name, module, reason
):
    network, _, data = learnt
    model = SimpleNamespace(
        row_losses=work.row_losses,
        generate=work.generate,
        correct=work.correct,
        row_scores=lambda targets, outputs: {name: work.correct(targets, outputs)},
    )
    specs = (*data.inputs, data.targets)
    parts = {"counts": scores.counts, "scores_of": scores.scores_of} | module
    with pytest.raises(ValueError, match=reason):
        evaluate = Functions(model, SETTINGS).compile_evaluation(network, specs, tf.reduce_sum)
        epoch_scores(evaluate, data, module=SimpleNamespace(**parts))


def test_outputs_that_are_large_are_computed_for_fewer_rows_at_once(networks):
    output_form = Functions(work, SETTINGS).output_form
    assert rows_at_once(output_form(networks[0])) == PREDICTION_ROWS
    large = tf.keras.Sequential([layers.Input((1,)), layers.Dense(2**19)])
    assert rows_at_once(output_form(large)) == 128
