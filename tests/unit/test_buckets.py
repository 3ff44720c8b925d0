"""PyTorch's gradients are exchanged in its buckets, each as soon as all of it is known."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from test_cost_model import EXACT

from escala.analysis.cost_model.calibration import Gradient
from escala.analysis.cost_model.exchange import Exchange, Message, in_buckets, plan_exchange
from escala.analysis.cost_model.predict import Setup, predict
from escala.core.variables import passed
from escala.engines import environments
from escala.probes.collectives import ALLREDUCE
from escala.runtime.layout import Layout

MIB = 2**20
#: Print the bytes of the buckets of each case that the standard input lists, in PyTorch's order.
ASSIGNED = """
import json, sys
import torch, torch.distributed as dist

for sizes, limits in json.load(sys.stdin):
    tensors = [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
    print(json.dumps([sum(sizes[each] for each in bucket) for bucket in buckets]))
"""


@pytest.mark.torch
def test_buckets_are_those_that_pytorch_assigns():
    random = np.random.default_rng(0)
    cases = [
        (random.integers(1, 9 * MIB, number).tolist(), limits)
        for number in (1, 2, 5, 30)
        for limits in ([MIB, 25 * MIB], [4 * MIB], [1], [MIB, 2 * MIB])
    ]
    python = environments.python("torch")
    done = subprocess.run(
        [python, "-c", ASSIGNED],
        input=json.dumps(cases),
        env=environments.variables(python, passed()),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for (sizes, limits), line in zip(cases, done.stdout.splitlines(), strict=True):
        known = [Message("", size, place / len(sizes)) for place, size in enumerate(sizes)]
        assert [each.size for each in in_buckets(known, limits)] == json.loads(line)


def test_a_bucket_is_known_with_its_last_gradient_and_the_last_layer_comes_first():
    at_once = [Message("", size, 0.5) for size in (4.0, 2.0, 1.0)]
    assert in_buckets([*at_once, Message("", 8.0, 1.0)], [3.0, 100.0]) == [
        Message(ALLREDUCE, 1 + 2, 0.5), Message(ALLREDUCE, 4 + 8, 1.0),
    ]  # fmt: skip


def test_a_knob_is_the_size_of_all_buckets_and_what_is_rounded_after_takes_half():
    assert Exchange().buckets == (MIB, 25 * MIB)
    assert Exchange(bucket_mib=0.5).buckets == (MIB / 2,)
    gradients = [Gradient(str(number), (MIB // 4,), ready=number / 4) for number in range(5)]
    for fp16, size in ((False, 2 * MIB), (True, MIB)):
        exchange = Exchange(fp16=fp16, bucket_mib=2)
        found = plan_exchange(gradients, 1, 2, exchange)
        buckets = in_buckets(found.messages, exchange.buckets)
        assert [each.size for each in buckets] == [size, size, size / 2]


#: Fractions of computing after which six gradients of 1 MiB are known.
READY = (1.0, 0.9, 0.75, 0.7, 0.5, 0.45)


@pytest.mark.parametrize(
    ("bucket_mib", "buckets"),
    [
        (0.5, [(1, 0.45), (1, 0.5), (1, 0.7), (1, 0.75), (1, 0.9), (1, 1.0)]),
        (2, [(2, 0.5), (2, 0.75), (2, 1.0)]),
        (None, [(1, 0.45), (5, 1.0)]),
    ],
)
def test_a_predicted_exchange_is_what_buckets_leave_after_computing(bucket_mib, buckets):
    """There is a core to spare, and Gloo takes as long as it did for Horovod, one after another."""
    times = [
        replace(each, library="torch-gloo") for each in EXACT.collectives if each.library == "gloo"
    ]
    gradients = [Gradient(str(place), (MIB // 4,), ready=at) for place, at in enumerate(READY)]
    work = replace(EXACT.works["cnn"], gradients=tuple(gradients))
    machine = replace(EXACT, cores_per_node=4, collectives=tuple(times), works={"cnn": work})
    exchange = Exchange(bucket_mib=bucket_mib)
    setup = Setup("cnn", Layout(1, 2), 64, "torch-gloo", exchange=exchange)
    terms = {name: seconds.item() for name, seconds in predict(machine, setup, 1).terms.items()}
    computing = sum(terms[name] for name in ("fixed", "compute", "contention", "skew"))
    [allreduce] = [
        each for each in times if each.operation == ALLREDUCE and each.layout == setup.layout
    ]
    end = 0.0
    for mib, ready in buckets:
        seconds = np.interp(mib * MIB, allreduce.sizes, allreduce.seconds.mean(axis=1))
        end = max(end, ready * computing) + seconds
    assert terms["exchange"] == pytest.approx(max(end - computing, 0.0), rel=0.02)
