"""How long a session waits for quiet; what it then measures again is in `test_session`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from escala.core.errors import InputError
from escala.measure import session


def load_of(*taken: float) -> type:
    """Return what stands for `Load`, of a machine of which others take so many cores each time."""
    left = iter(taken)

    class Stretch:
        def __init__(self, roots: list[int]):
            self.found = {
                "seconds": 1.0, "busy": next(left), "counted": 2.0, "own": 0.0, "steal": 0.0,
                "throttled": None, "pressure": None, "major_faults": 0, "stretches": 1, "cores": 2,
            }  # fmt: skip

        def begin(self) -> None: ...
        def end(self) -> None: ...

    return Stretch


def test_it_waits_until_the_machine_is_quiet_but_not_longer_than_the_bound(monkeypatch, capsys):
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(session, "time", clock)
    monkeypatch.setattr("escala.core.console.time", clock)
    monkeypatch.setattr(session, "Load", load_of(*[1.0] * 6, 0.0, 0.0, 0.9, 0.0, 0.05, 0.0, 9.0))
    assert session.wait_for_quiet() and clock.now == 12
    assert "waiting for quiet: 1.00 core of other processes" in capsys.readouterr().err
    monkeypatch.setenv(session.WAIT_VARIABLE, "20")
    monkeypatch.setattr(session, "Load", load_of(*[0.0, 0.7] * 100))
    began = clock.now
    assert not session.wait_for_quiet()
    assert 20 < clock.now - began <= 22
    assert "did not become quiet" in capsys.readouterr().err
    monkeypatch.setenv(session.WAIT_VARIABLE, "0")
    monkeypatch.setattr(session, "Load", load_of())
    assert session.wait_for_quiet()


@pytest.mark.parametrize(
    ("variable", "read"),
    [(session.VARIABLE, session.times_again), (session.WAIT_VARIABLE, session.wait_for_quiet)],
)
def test_what_is_no_number_is_refused(monkeypatch, variable, read):
    monkeypatch.setenv(variable, "often")
    with pytest.raises(InputError, match=variable):
        read()
