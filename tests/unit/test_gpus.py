"""GPUs that a process may use, and those that it gives its ranks."""

from __future__ import annotations

import os
import sys

import pytest

from escala import engines
from escala.core import hardware
from escala.core.errors import Unavailable
from escala.core.hardware import VISIBLE_GPUS, available_gpus
from escala.strategies.base import Place
from tests.unit.nvml import Gpu, Nvml


@pytest.fixture
def driver(monkeypatch):
    def install(uuids: list[str] | None) -> Nvml:
        made = Nvml(
            None if uuids is None else [Gpu(uuid, f"Model {n}") for n, uuid in enumerate(uuids)]
        )
        monkeypatch.setitem(sys.modules, "pynvml", made)
        return made

    for name in (VISIBLE_GPUS, "TF_FORCE_GPU_ALLOW_GROWTH"):
        # Set before it is deleted: the fixture then restores what a test sets.
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)
    return install


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [("GPU-a", "Model 0"), ("GPU-b", "Model 1"), ("GPU-c", "Model 2")]),
        ("", []),
        ("-1", []),
        ("2,0", [("2", "Model 2"), ("0", "Model 0")]),
        ("GPU-b, 0", [("GPU-b", "Model 1"), ("0", "Model 0")]),
        # CUDA shows those before the first that does not exist.
        ("1,7,0", [("1", "Model 1")]),
        ("GPU-x,0", []),
    ],
)
def test_gpus_are_those_that_cuda_shows(driver, visible, expected):
    made = driver(["GPU-a", "GPU-b", "GPU-c"])
    environment = {} if visible is None else {VISIBLE_GPUS: visible}
    assert available_gpus(environment) == expected
    assert made.open == 0


def test_without_a_driver_there_are_no_gpus_and_a_machine_is_described_as_before(driver):
    driver(None)
    assert available_gpus({}) == []
    assert "gpus" not in hardware.describe()


def place(local: int, ranks: list[int]) -> Place:
    return Place(
        process=local,
        processes=2,
        ranks=ranks,
        node=0,
        nodes=1,
        local=local,
        processes_per_node=2,
        host="n",
        cores=[0],
        addresses=[],
        extra_addresses=[],
    )


@pytest.mark.parametrize(
    ("gpus", "ranks", "expected"),
    [
        # A process for each rank, a GPU for each.
        (["GPU-a", "GPU-b"], [[0], [1]], ["GPU-a", "GPU-b"]),
        # More ranks than GPUs share them in turns.
        (["GPU-a", "GPU-b"], [[0], [1], [2], [3]], ["GPU-a", "GPU-b", "GPU-a", "GPU-b"]),
        (["GPU-a"], [[0], [1]], ["GPU-a", "GPU-a"]),
        # One process for the ranks of a node.
        (["GPU-a", "GPU-b", "GPU-c"], [[0, 1]], ["GPU-a,GPU-b"]),
        (["GPU-a"], [[0, 1]], ["GPU-a"]),
    ],
)
@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_each_rank_has_a_gpu_of_its_node(driver, monkeypatch, device, gpus, ranks, expected):
    driver(gpus)
    shown = []
    for local, held in enumerate(ranks):
        monkeypatch.delenv(VISIBLE_GPUS, raising=False)
        engines.show_device(device, place(local, held))
        shown.append(os.environ[VISIBLE_GPUS])
        assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert shown == expected


def test_ranks_on_cores_see_no_gpu(driver):
    driver(["GPU-a"])
    engines.show_device("cpu", place(0, [0]))
    assert available_gpus() == []


def test_without_gpus_auto_changes_nothing_and_gpu_is_refused(driver):
    driver(None)
    engines.show_device("auto", place(0, [0]))
    assert VISIBLE_GPUS not in os.environ
    with pytest.raises(Unavailable, match="device: gpu needs a GPU"):
        engines.show_device("gpu", place(0, [0]))


def test_a_tensorflow_without_cuda_is_not_taken_for_one_that_uses_the_gpu(driver, monkeypatch):
    from escala.engines.tensorflow import engine

    driver(["GPU-a"])
    monkeypatch.setattr(engine.tf.config, "list_physical_devices", lambda kind: [])
    assert engine.gpus_in_use("auto") == []
    with pytest.raises(Unavailable, match="TensorFlow finds no GPU"):
        engine.gpus_in_use("gpu")
    monkeypatch.setattr(engine.tf.config, "list_physical_devices", lambda kind: ["one"])
    assert engine.gpus_in_use("gpu") == ["GPU-a"]


@pytest.mark.parametrize("strategy", ["ddp-nccl", "fsdp"])
def test_ranks_that_would_share_a_gpu_by_nccl_are_unavailable(driver, strategy):
    driver(["GPU-a"])
    plan = {"strategy": strategy, "knobs": {"device": "auto"}}
    with pytest.raises(Unavailable, match="a GPU for each of 2 ranks, and the node has 1"):
        engines.create_engine(plan, place(0, [0]))
