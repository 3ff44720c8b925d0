"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escala.analysis import statistics


@pytest.fixture(autouse=True)
def without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts make what they are asked for; tests of the store name one of their own."""
    monkeypatch.setenv("ESCALA_STORE", "off")


@pytest.fixture(scope="module")
def few_resamples() -> Iterator[None]:
    """Draw few bootstrap samples, for tests that do not depend on the last digits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 199)
        yield
