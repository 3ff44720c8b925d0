"""What MPI ranks exchanged by: read from their logs, and held against what was asked for."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from escala.core.files import read_yaml
from escala.experiment.files import ROOT
from escala.record import place
from escala.runtime import mpi

#: Open MPI 4.1.8 writes this, of two ranks on two nodes, into the log of each.
OB1 = """\
[{here}:13470] select: initializing pml component ob1
[{here}:13470] select: init returned priority 20
[{here}:13470] select: component ob1 selected
[{here}:13589] mca: bml: Using self btl for send to [[23037,1],1] on node {here}
[{here}:13589] mca: bml: Using vader btl for send to [[23037,1],2] on node {here}
[{here}:13589] mca: bml: Using {btl} btl for send to [[23037,1],0] on node {there}
"""
UCX = """\
[{here}:13685] select: init returned priority 51
[{here}:13685] selected ucx best priority 51
[{here}:13685] select: component ucx selected
[{here}:13685] mca: base: close: component ucx closed
"""
OVER_TCP = {"pml": "ob1", "btl": ["tcp"], "interface": "eth0"}
UNNAMED = {"pml": "ucx", "btl": None, "interface": None}


@pytest.fixture
def recorded(tmp_path):
    """Return the outcome and the result of two ranks, from their logs and what was asked for."""

    def record(asked: str | None, *logs: str, btl: str = "tcp", strategy: str = "horovod-mpi"):
        hosts = ("n1", "n2"), ("n2", "n1")
        for rank, (text, (here, there)) in enumerate(zip(logs, hosts, strict=True)):
            said = text.format(here=here, there=there, btl=btl)
            (tmp_path / f"rank{rank}.log").write_text(said)
        link = {"interface": "ib0"} | ({"transport": asked} if asked else {})
        request = {"link": link, "strategy": strategy, "network": "ethernet"}
        outcome = place.check_transport(request, tmp_path, "eth0")
        return outcome, outcome.found.get("ranks", {}).get("transport")

    return record


def test_what_ran_is_recorded_and_one_that_was_not_asked_for_fails_the_run(recorded):
    schema = read_yaml(ROOT / "schemas/run.schema.yaml")["properties"]["ranks"]["properties"]
    outcome, found = recorded("tcp", OB1, OB1)
    assert (outcome.status, found) == ("ok", OVER_TCP)
    Draft202012Validator(schema["transport"]).validate(found)
    for asked, interface in (("ucx", "ib0"), (None, None)):
        outcome, found = recorded(asked, UCX, UCX)
        assert (outcome.status, found) == ("ok", UNNAMED | {"interface": interface})
    for asked, logs, said in (
        ("tcp", (UCX, UCX), "tcp was asked for, and Open MPI chose pml ucx. Remedy"),
        ("ucx", (OB1, OB1), "chose pml ob1, btl tcp between nodes. Remedy"),
        ("ucx", (UCX, OB1), "chose pml ob1, ucx"),
        ("tcp", ("", ""), "Open MPI said nothing"),
    ):
        outcome, _ = recorded(asked, *logs)
        assert outcome.status == "failed" and said in outcome.reason
    assert recorded("tcp", OB1, OB1, btl="ofi")[0].status == "failed"
    outcome, found = recorded("tcp", "", "", strategy="horovod-gloo")
    assert (outcome.status, found) == ("ok", None)


def test_ucx_takes_the_rdma_device_of_a_named_interface(tmp_path, monkeypatch):
    monkeypatch.setattr(mpi, "INTERFACES", tmp_path)
    (tmp_path / "ib0/device/infiniband/mlx5_1").mkdir(parents=True)
    (tmp_path / "ib0/dev_port").write_text("1\n")
    (tmp_path / "eth0").mkdir()
    assert mpi.transport("ucx", "ib0")["UCX_NET_DEVICES"] == "mlx5_1:2"
    over_tcp = mpi.transport("ucx", "eth0")
    assert over_tcp["UCX_NET_DEVICES"] == "eth0"
    # Without these, Open MPI leaves UCX out where there is no such device.
    assert over_tcp["OMPI_MCA_opal_common_ucx_tls"] == "any"
    for asked in ("tcp", None):
        assert "UCX_NET_DEVICES" not in mpi.transport(asked, "ib0")
    assert "OMPI_MCA_pml" not in mpi.transport(None, "ib0")
