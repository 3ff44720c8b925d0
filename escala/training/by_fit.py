"""Fit a workload in this process, without TensorFlow."""

from __future__ import annotations

from pathlib import Path

from escala.probes import Probe
from escala.strategies.shared.place import Place
from escala.training.process import load_reader, startup_seconds


def run(request: dict, folder: Path, place: Place, _: Probe | None) -> dict:
    """Return what the fit measures, in the form of `escala.training.train`."""
    from threadpoolctl import threadpool_info, threadpool_limits

    from escala.training.fit import fit
    from escala.workloads import workload

    workload(request["workload"])  # The thread pools of its libraries exist from here on.
    with threadpool_limits(request["knobs"]["threads"]["intra_op"]):
        startup = startup_seconds(place.process, 1)
        reader = load_reader(request, place)
        measured = fit(request, folder, reader)
        measured["load"] = reader.found
        threads = max(pool["num_threads"] for pool in threadpool_info())
    measured["seconds"]["startup"] = startup
    return measured | {"ranks": 1, "threads": {"intra_op": threads, "inter_op": 1}}
