"""The rate and the latency of a real link: by two ends here, and once in a job."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from escala.analysis.comparable import _links
from escala.core.files import read_json
from escala.record import place
from escala.runtime import asking
from escala.runtime.launch import SRUN
from escala.runtime.layout import Launch

FOUND = {"mbit_per_second": 940.0, "latency_ms": 0.25}


def test_two_ends_measure_rate_and_latency(monkeypatch):
    monkeypatch.setattr(asking, "_OMITTED", 0.02)
    monkeypatch.setattr(asking, "_COUNTED", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found: dict[str, float] = {}
    served = threading.Thread(target=lambda: found.update(asking.serve("127.0.0.1", port)))
    served.start()
    found |= asking.connect("127.0.0.1", port)
    served.join(30)
    assert found.keys() == FOUND.keys() and min(found.values()) > 0
    with socket.create_server(("127.0.0.1", port), reuse_port=False):
        pass  # The port of the server is free at once: the other end closed first.


@pytest.fixture
def launch(tmp_path, monkeypatch) -> Launch:
    """Three nodes of a job, whose `srun` notes its words and answers as two ends do."""
    lines = [asking.LINK_MARK + json.dumps({name: value}) for name, value in FOUND.items()]
    said = "; ".join(f"echo '{line}'" for line in lines)
    (tmp_path / "srun").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n{said}\n')
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    nodes = [
        SimpleNamespace(host=f"n{number}", address=f"10.0.0.{number}", ports=[4000],
                        interface="eth0")
        for number in (1, 2, 3)
    ]  # fmt: skip
    return Launch(SRUN, nodes, "17", ("n3", "n1", "n2"))


def linked(launch: Launch, folder: Path, **more: str) -> dict:
    """Return the link of a run that is recorded."""
    request = {"experiment": "demo", "link": {"interface": None, "rate": None} | more}
    outcome = place.set_links(request, launch, None, folder / "demo" / "runs" / "rep1")
    assert outcome.status == "ok"
    return dict(outcome.found["link"])


def test_a_link_is_measured_once_in_a_job(launch, tmp_path):
    for _ in range(2):
        found = linked(launch, tmp_path)
        assert found == {"interface": None, "rate": None, "measured_by": "tcp"} | FOUND
    [asked] = (tmp_path / "asked").read_text().splitlines()
    assert "--jobid=17 --nodes=3 --ntasks=3" in asked and "--nodelist=n3,n1,n2" in asked
    assert "--ends n1 n2 --address 10.0.0.1 --port 4000" in asked
    assert read_json(tmp_path / "demo" / "logs" / "link-17-eth0.json") == FOUND


def test_a_link_of_another_transport_than_tcp_is_not_measured(launch, tmp_path):
    assert linked(launch, tmp_path, transport="ucx")["mbit_per_second"] is None
    assert not (tmp_path / "asked").exists()


def test_a_link_that_cannot_be_measured_is_unknown_and_asked_for_again(launch, tmp_path, capsys):
    answers = (tmp_path / "srun").read_text()
    (tmp_path / "srun").write_text("#!/bin/sh\necho no route >&2\nexit 1\n")
    assert linked(launch, tmp_path)["latency_ms"] is None
    assert "between n1 and n2 was not measured: no route" in capsys.readouterr().err
    (tmp_path / "srun").write_text(answers)
    assert linked(launch, tmp_path)["latency_ms"] == FOUND["latency_ms"]


def test_rates_of_one_connection_are_no_reason_against_a_comparison():
    def run(rate: float, **more: str) -> dict:
        known = {"rate": None, "mbit_per_second": rate} | more
        ranks = {"interface": "eth0"}
        return {"network": "native", "ranks": ranks, "link": known, "session": str(rate)}

    assert list(_links(run(900), run(500)))
    assert not list(_links(run(900, measured_by="tcp"), run(500, measured_by="tcp")))
