"""Layouts and the cores their processes get."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.runtime.layout import EXTRA_PORTS, Layout, Node, places
from escala.strategies import STRATEGIES


@settings(deadline=None)
@given(st.integers(1, 9999), st.integers(1, 9999))
def test_a_layout_is_read_as_it_is_written(nodes, processes):
    layout = Layout.parse(f"{nodes}x{processes}")
    assert (layout.nodes, layout.processes, layout.ranks) == (nodes, processes, nodes * processes)
    assert str(layout) == f"{nodes}x{processes}"


@pytest.mark.parametrize("text", ["", "2", "0x1", "01x1", "1x2\n", "-1x2"])
def test_anything_else_is_no_layout(text):
    with pytest.raises(ValueError, match="NODESxPROCS"):
        Layout.parse(text)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.sets(st.integers(0, 99), min_size=1, max_size=40))
def test_processes_get_cores_of_their_own_while_there_are_enough(processes, per_process, cores):
    ports = [*range(processes + EXTRA_PORTS)]
    node = Node("here", "lo", "127.0.0.1", sorted(cores), ports, {})
    knobs = {"cores_per_process": per_process, "bind": True}
    found = places(Layout(1, processes), STRATEGIES["processes"], knobs, [node])
    assigned = [each["cores"] for each in found]
    assert len(assigned) == processes
    taken = [core for own in assigned for core in own]
    assert set(taken) <= cores
    for own in assigned:
        assert len(own) == len(set(own)) == min(per_process, len(cores))
    if processes * per_process <= len(cores):
        assert len(taken) == len(set(taken))
    else:
        assert set(taken) == cores
