"""What unit tests share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts make what they are asked for; tests of the store name one of their own."""
    monkeypatch.setenv("ESCALA_STORE", "off")
