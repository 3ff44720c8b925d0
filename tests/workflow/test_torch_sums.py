"""Real ranks of PyTorch sum their gradients in memory that they share."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from escala.core.variables import passed
from escala.engines import environments

SCRIPT = Path(__file__).with_name("torch_sums.py")


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.sweep), 3])
def test_every_rank_gets_the_sums_in_the_order_of_the_ranks_to_the_last_bit(ranks):
    """In several buckets and two types, whichever rank is late to write or to read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    python = environments.python("torch")
    environment = environments.variables(python, passed()) | {"PYTHONSAFEPATH": "1"}
    environment["PYTHONPATH"] += f"{os.pathsep}{environments.ROOT}"
    processes = [
        subprocess.Popen(
            [python, SCRIPT, str(rank), str(ranks), str(port)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        _, log = process.communicate(timeout=120)
        assert process.returncode == 0, log
