"""Ranks that train the module beside DistributedDataParallel exchange nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from escala.core.files import read_json
from escala.record import collect
from escala.record.invariants import violated_invariant
from escala.record.run import measure

pytestmark = pytest.mark.torch

BARE = {"trained_module": "bare", "evaluation": "whole"}


@pytest.fixture
def train(small_split, request_for, tmp_path, monkeypatch) -> Callable[..., tuple[dict, list]]:
    """Return a function that trains on two ranks; it returns the result and the ranks' digests."""
    digests = []

    def seen(planned, ranks, *more):
        digests[:] = [each["weights_sha256"][0] for each in ranks]
        return violated_invariant(planned, ranks, *more)

    monkeypatch.setattr(collect, "violated_invariant", seen)

    def made(**knobs: object) -> tuple[dict, list[str]]:
        request = request_for("ddp-gloo", "1x2", epochs=2, knobs=knobs)
        file = tmp_path / str(len(list(tmp_path.iterdir()))) / "run.json"
        measure(request, small_split, file, 300)
        return read_json(file), [*digests]

    return made


def test_each_rank_trains_alone_and_the_first_one_as_ranks_with_the_same_leading_rows(train):
    """The mean of two equal gradients is each of them, to the last bit."""
    bare, (first, second) = train(**BARE)
    assert bare["status"] == "ok", bare["reason"]
    assert first != second and bare["weights_sha256"] == first
    leading, digests = train(shard="leading")
    assert leading["status"] == "ok" and digests == [first, first]
    wrapped, _ = train()
    assert wrapped["weights_sha256"] != first
