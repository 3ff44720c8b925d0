"""How ranks are started: layouts, SLURM, rendezvous, transports, links."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from escala.analysis.comparable import _links
from escala.core.errors import InputError
from escala.core.files import read_json, read_yaml
from escala.experiment import ROOT
from escala.record import supervise
from escala.runtime import asking, mpi, slurm
from escala.runtime.launch import SRUN
from escala.runtime.layout import EXTRA_PORTS, Launch, Layout, Node, places
from escala.strategies import STRATEGIES


@settings(deadline=None)
@given(st.integers(1, 9999), st.integers(1, 9999))
def test_a_layout_is_read_as_it_is_written(nodes, processes):
    layout = Layout.parse(f"{nodes}x{processes}")
    assert (layout.nodes, layout.processes, layout.ranks) == (nodes, processes, nodes * processes)
    assert str(layout) == f"{nodes}x{processes}"


def test_anything_else_is_no_layout():
    for text in ("", "2", "0x1", "01x1", "1x2\n", "-1x2"):
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
        outcome = supervise.check_transport(request, tmp_path, "eth0")
        return outcome, outcome.measured.get("ranks", {}).get("transport")

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


CANCELLED = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-02 DUE TO NODE FAILURE ***\n"


@pytest.fixture
def install(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()

    def written(path: str = os.environ["PATH"], **scripts: str | None) -> None:
        for name, script in scripts.items():
            if script is not None:
                (folder / name).write_text(f"#!/bin/sh\n{script}\n")
                (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{path}")

    return written


@pytest.mark.parametrize("script", ["exec sleep 60", "exit 1", None])
def test_a_job_has_an_ending_if_the_scheduler_does_not_answer(
    install, tmp_path, monkeypatch, script
):
    install("/bin" if script else "", squeue=script, sacct=script)
    monkeypatch.setattr(slurm, "_CALL_SECONDS", 0.2)
    log = tmp_path / "10.log"
    log.write_text(CANCELLED)
    status, reason = slurm.job_ending("10", log)
    assert status == "failed" and "DUE TO NODE FAILURE" in reason


def test_the_queue_is_asked_and_then_accounting(install, monkeypatch):
    install(squeue="exit 1", sacct="echo 'CANCELLED by 1000'")
    assert slurm.job_ending("10", None)[0] is None
    install(sacct="echo OUT_OF_MEMORY")
    assert slurm.job_ending("10", None)[0] == "out-of-memory"
    # What a user lets it print hides no job.
    install(squeue='[ -z "$SQUEUE_STATES" ] && echo "7|TIMEOUT"')
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    assert slurm.job_ending("7", None)[0] == "timeout"
    install(squeue="printf '7|DEADLINE\\n8|FAILED\\n'")
    assert slurm.overdue_jobs("name") == ["7"]


@pytest.mark.parametrize(
    ("sinfo", "reason"),
    [
        (
            "echo 'sinfo: error: Zero Bytes were transmitted' >&2; exit 1",
            "not answer: .*Zero Bytes",
        ),
        ("exit 3", "not answer: .*sinfo ended with 3"),
        ("exec /bin/sleep 300", "not answer: .*no answer within 0.2 s"),
        (None, "'sinfo': not found on the PATH"),
    ],
)
def test_a_controller_that_does_not_answer_in_time_is_refused(
    install, tmp_path, monkeypatch, sinfo, reason
):
    install("", **dict.fromkeys(slurm._PROGRAMS, "exit 1") | {"sinfo": "echo main"})
    slurm.require_controller()
    (tmp_path / "bin/sinfo").unlink()
    install("", sinfo=sinfo)
    monkeypatch.setattr(slurm, "_ANSWER_SECONDS", 0.2)
    with pytest.raises(InputError, match=reason) as error:
        slurm.require_controller()
    assert "without --profile" in error.value.remedy


@pytest.mark.parametrize(
    ("state", "ended", "code"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "75:0", 75),
        ("FAILED", "2:0", 2),
        ("CANCELLED", "0:15", 143),
        # SLURM gives these no code of their own.
        ("TIMEOUT", "0:0", 1),
        ("NODE_FAIL", "0:0", 1),
    ],
)
def test_a_wait_ends_with_the_exit_code_of_the_job(install, tmp_path, state, ended, code):
    lines = ["   JobState={} Reason=None", "   Requeue=1 Reboot=0 ExitCode={}"]
    running, over = (
        "\n".join(lines).format(*each) for each in (("RUNNING", "0:0"), (state, ended))
    )
    asked = tmp_path / "asked"
    install(
        scontrol=f"""echo "$@" >> {asked}
        [ $(wc -l < {asked}) -lt 3 ] && echo '{running}' || echo '{over}'"""
    )
    assert slurm.wait("31", seconds=0.01) == code
    assert asked.read_text() == 3 * "show job 31\n"
    install(scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert slurm.wait("31") == 1, "SLURM has forgotten it"


def test_a_wait_that_is_ended_cancels_the_job(install, tmp_path, monkeypatch):
    install(
        scontrol="echo '   JobState=PENDING Reason=Priority'", scancel=f"echo $1 > {tmp_path}/gone"
    )

    def interrupted(seconds: float) -> None:
        raise SystemExit(130)

    monkeypatch.setattr(slurm.time, "sleep", interrupted)
    with pytest.raises(SystemExit):
        slurm.wait("31")
    assert (tmp_path / "gone").read_text() == "31\n"


FOUND = {"mbit_per_second": 940.0, "latency_ms": 0.25}


def test_two_ends_measure_rate_and_latency(monkeypatch):
    monkeypatch.setattr(asking, "_OMITTED_SECONDS", 0.02)
    monkeypatch.setattr(asking, "_COUNTED_SECONDS", 0.1)
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
    request = {"experiment": "demo", "link": {"interface": None, "rate": None} | more}
    outcome = supervise.set_links(request, launch, None, folder / "demo" / "runs" / "rep1")
    assert outcome.status == "ok"
    return dict(outcome.measured["link"])


def test_a_link_is_measured_once_in_a_job_and_asked_for_again_where_it_failed(
    launch, tmp_path, capsys
):
    answers = (tmp_path / "srun").read_text()
    assert linked(launch, tmp_path, transport="ucx")["mbit_per_second"] is None
    (tmp_path / "srun").write_text("#!/bin/sh\necho no route >&2\nexit 1\n")
    assert linked(launch, tmp_path)["latency_ms"] is None
    assert "between n1 and n2 was not measured: no route" in capsys.readouterr().err
    (tmp_path / "srun").write_text(answers)
    for _ in range(2):
        found = linked(launch, tmp_path)
        assert found == {"interface": None, "rate": None, "measured_by": "tcp"} | FOUND
    [asked] = (tmp_path / "asked").read_text().splitlines()
    assert "--jobid=17 --nodes=3 --ntasks=3" in asked and "--nodelist=n3,n1,n2" in asked
    assert "--ends n1 n2 --address 10.0.0.1 --port 4000" in asked
    assert read_json(tmp_path / "demo" / "logs" / "link-17-eth0.json") == FOUND


def test_rates_of_one_connection_are_no_reason_against_a_comparison():
    def run(rate: float, **more: str) -> dict:
        known = {"rate": None, "mbit_per_second": rate} | more
        ranks = {"interface": "eth0"}
        return {"network": "native", "ranks": ranks, "link": known, "session": str(rate)}

    assert list(_links(run(900), run(500)))
    assert not list(_links(run(900, measured_by="tcp"), run(500, measured_by="tcp")))
