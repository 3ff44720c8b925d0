"""The least memory of a run, against models of Keras and what a real rank takes."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from escala.core import readable
from escala.core.engines import ENGINES
from escala.core.files import read_json
from escala.core.hardware import available_memory
from escala.engines.tensorflow.footprint import footprint, peak
from escala.record.run import measure
from escala.training import memory, shards
from tests.conftest import ROOT

#: Bytes of the layers' outputs that one row of `virus-cnn` of 20 letters keeps, in their order:
#: embedding, convolution, pooling, convolution, pooling and three dense layers, of float32.
KEPT = [4 * n for n in (20 * 8, 19 * 128, 9 * 128, 8 * 64, 4 * 64, 128, 64, 5)]
#: An optimiser.
WITHOUT_VARIABLES = SimpleNamespace(variables=())


def test_a_footprint_holds_the_variables_of_model_and_optimizer_and_what_a_row_keeps():
    from escala.workloads.virus_cnn import model as virus_cnn

    knobs = {"optimizer": "keras"}
    model = virus_cnn.network(20, 5)
    optimizer = virus_cnn.optimizer({}, 0.1, knobs)
    optimizer.build(model.trainable_variables)
    weights = [array.nbytes for array in model.get_weights()]
    found = footprint(model, optimizer)
    assert found.variables == sum(weights)
    # RMSprop keeps one average for each weight, and the number of its steps.
    assert found.optimizer == sum(weights) + 8
    assert found.gradient == max(weights)
    # The backward pass of the first pooling: the outputs up to it, and the gradients of its output
    # and of its input.
    assert found.row == KEPT[0] + 2 * KEPT[1] + 2 * KEPT[2]
    one = 2 * sum(weights) + 8 + max(weights) + 7 * found.row
    process = ENGINES["tensorflow"].process_bytes
    assert memory.node_bytes(found, [7], 1, "tensorflow") == process + one
    two = 2 * one - found.row
    assert memory.node_bytes(found, [7, 6], 1, "tensorflow") == process + two
    # A parameter server holds the only copy, and two more processes run alongside two workers.
    shared = 4 * process + two - 2 * sum(weights) - 8
    assert memory.node_bytes(found, [7, 6], 2, "tensorflow", one_copy=True) == shared


@pytest.mark.parametrize(
    ("outputs", "largest"),
    [([], 0), ([5], 10), ([1, 1, 1], 5), ([1, 10, 1, 1], 23), ([10, 1, 1], 22)],
)
def test_the_peak_is_where_outputs_and_gradients_together_are_most(outputs, largest):
    """Go back layer by layer: each needs its input, its output, and a gradient of both."""
    alive, by_hand = list(outputs), 0
    while alive:
        gradients = alive[-2:]
        by_hand = max(by_hand, sum(alive) + sum(gradients))
        alive.pop()
    assert peak(outputs) == by_hand == largest


def test_a_residual_network_of_tensorflows_functions_keeps_the_outputs_of_its_dense_layers():
    """The functions are layers too, and TensorFlow may compute them in place."""
    import tensorflow as tf
    from tensorflow.keras import Model, layers

    given = layers.Input((3, 2))
    first = layers.Dense(4)(tf.reshape(given, (-1, 6)))
    added = tf.nn.relu(first) + layers.Dense(4)(tf.nn.relu(first))
    whole = Model(given, {"classes": layers.Dense(1)(added[:, :2])})
    found = footprint(whole, WITHOUT_VARIABLES)
    assert found.row == peak([16, 16, 4])


def test_outputs_of_unknown_rank_count_as_nothing_and_named_ones_each():
    import tensorflow as tf
    from tensorflow.keras import Model, layers

    class Named(layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=())

        def call(self, inputs):
            hidden = tf.py_function(lambda rows: rows, [inputs], tf.float32)
            return {"hidden": hidden, "scaled": self.scale * inputs}

    given = layers.Input((6,))
    found = footprint(Model(given, Named()(given)), WITHOUT_VARIABLES)
    assert found.row == peak([24])


def test_the_logits_of_captions_are_not_counted_twice():
    """Each position has a number for every word, which the last dense layer computes."""
    from tensorflow.keras import layers

    from tests.unit.test_caption_lstm import build

    model = build()
    found = footprint(model, WITHOUT_VARIABLES)
    weighted = [layer for layer in model.layers if layer.weights]
    kept = [4 * math.prod(layer.output_shape[1:]) for layer in weighted]
    assert isinstance(weighted[-1], layers.Dense) and found.row == peak(kept)


def test_layers_that_reuse_their_input_keep_nothing_and_models_in_models_count_once():
    from tensorflow.keras import Model, layers

    given = layers.Input((6,))
    inner = Model(given, layers.ReLU()(layers.Dense(4)(given)))
    whole = Model(given, layers.Add()([inner(given), layers.Dense(4)(given)]))
    found = footprint(whole, WITHOUT_VARIABLES)
    assert found.row == peak([16, 16])


@pytest.mark.parametrize(
    ("batch", "ranks", "parts", "by_speed", "rows"),
    [
        (64, 1, 1, False, [64]),
        (66, 4, 1, False, [17, 17, 16, 16]),
        (66, 4, 4, False, [5, 5, 4, 4]),
        (64, 2, 2, True, [32, 32]),
    ],
)
def test_a_rank_computes_its_rows_in_parts(batch, ranks, parts, by_speed, rows):
    assert memory.rows_of_ranks(batch, ranks, parts, by_speed) == rows
    if not by_speed:
        fractions = shards.split_rows(batch, [1 / ranks] * ranks)
        assert rows == [math.ceil(each / parts) for each in fractions]


def test_a_real_rank_takes_more_than_the_bound_and_less_than_twice_as_much():
    command = [sys.executable, "-m", "benchmarks.memory", "--case", "tal1-cnn-batch-1024"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    largest, bound = map(int, re.search(r"largest +(\d+) +bound +(\d+) MiB", done.stdout).groups())
    assert ENGINES["tensorflow"].process_bytes / 2**20 < bound < largest < 2 * bound


def test_a_run_that_cannot_fit_does_not_begin_and_says_what_it_needs(
    small_split, request_for, tmp_path, monkeypatch
):
    """SLURM grants 100 MiB, less than a process with TensorFlow takes."""
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "100")
    outcome = measure(request_for("single", "1x1"), small_split, tmp_path / "run.json", 120)
    assert outcome.status == "out-of-memory"
    assert re.search(r"needs at least 2\d\d\.\d MiB of memory on a node, with 32", outcome.reason)
    assert "100.0 MiB are available. Remedy: a smaller batch, a larger `acc" in outcome.reason
    result = read_json(tmp_path / "run.json")
    assert result["status"] == "out-of-memory" and result["epochs"] == []


def test_free_memory_is_that_of_the_machine_its_groups_and_the_job(tmp_path):
    """A job's group in version 2 leaves 90 of 100 MiB, and its file cache does not count."""
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    nothing = tmp_path / "nothing"
    free = available_memory(nothing, nothing, {})
    assert free == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    (proc / "self/cgroup").write_text("0::/job/step\n")
    write(groups / "job", {"memory.max": 100 << 20, "memory.stat": stat(anon=10, file=80)})
    write(groups / "job/step", {"memory.max": "max", "memory.stat": stat(anon=10, file=80)})
    assert available_memory(proc, groups, {}) == 90 << 20
    first = {"memory.limit_in_bytes": 50 << 20, "memory.stat": stat(total_rss=7, total_cache=9)}
    write(groups / "memory", first)
    (proc / "self/cgroup").write_text("5:cpu:/a\n4:hugetlb,memory:/outside\n0::/job/step\n")
    assert available_memory(proc, groups, {}) == 43 << 20
    assert available_memory(nothing, nothing, {"SLURM_MEM_PER_NODE": "30"}) == 30 << 20
    by_core = {"SLURM_MEM_PER_CPU": "10", "SLURM_CPUS_ON_NODE": "2"}
    assert available_memory(proc, groups, by_core) == 20 << 20
    assert available_memory(nothing, nothing, {"SLURM_MEM_PER_NODE": "0"}) > 100 << 20
    assert available_memory(nothing, nothing, {"SLURM_MEM_PER_NODE": "30720k"}) == 30 << 20
    by_core = {"SLURM_MEM_PER_CPU": "10M", "SLURM_CPUS_ON_NODE": "2"}
    assert available_memory(nothing, nothing, by_core) == 20 << 20
    for text in ("", "all", "4 G", "-1"):
        unreadable = {"SLURM_MEM_PER_NODE": text, "SLURM_CPUS_ON_NODE": text}
        assert available_memory(nothing, nothing, unreadable) > 100 << 20


def write(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def stat(**mebibytes: int) -> str:
    return "\n".join(f"{name} {number << 20}" for name, number in mebibytes.items())


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (2**31, "2.0 GiB")],
)
def test_sizes_are_written_as_people_do(number, text):
    assert readable.size(number) == text
