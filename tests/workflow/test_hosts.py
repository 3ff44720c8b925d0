"""Runs on hosts that the user names, by ssh: two names of this machine, and a server of the test.

The server has keys, settings and a port of its own, and reads nothing of the user's.
"""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.experiment import load
from escala.record.run import measure
from escala.runtime import allocation, asking
from tests.calls import python
from tests.conftest import ROOT, sshd
from tests.programs import JOINING, eventually, experiment_on, prepare

pytestmark = pytest.mark.ssh

#: Meets the other ranks, and writes where it is and how it was reached.
MEETING = """
import json, os, socket, sys, time
from escala_steps import begin, epoch, step
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
told = {"connection": os.environ["SSH_CONNECTION"], "cores": sorted(os.sched_getaffinity(0))}
with open(f"{sys.argv[1]}/told{rank}.json", "w") as file:
    json.dump(told, file)
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(address)
    peers = [server.accept()[0] for _ in range(ranks - 1)]
while rank:
    try:
        peers = [socket.create_connection(address)]
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
for _ in range(2):
    begin()
    for _ in range(4):
        for peer in peers:
            peer.sendall(b"x")
            peer.recv(1)
        step(rows=int(sys.argv[2]))
    epoch()
"""


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[tuple[str, int]]:
    """The words of an ssh that reaches this machine as `one` and `two`, and the server's port."""
    folder, port = tmp_path_factory.mktemp("ssh"), _free_port()
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(words, check=True)
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nPasswordAuthentication no\n"
    )
    (folder / "config").write_text(
        f"Host one two\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
        f"  UserKnownHostsFile {folder}/known\n  LogLevel ERROR\n"
    )
    words = [sshd(), "-D", "-e", "-f", str(folder / "sshd_config")]
    if os.geteuid() == 0 and not Path("/run/sshd").is_dir():
        # A server of root needs this folder. It gets one that nobody else sees.
        inside = 'mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", inside, "sh", *words]
    ssh = f"ssh -F {folder}/config -o BatchMode=yes -o ConnectTimeout=5"
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(words, stderr=log)
    try:
        reached = [*ssh.split(), "one", "true"]
        is_up = eventually(lambda: not subprocess.run(reached, capture_output=True).returncode)
        assert is_up, (folder / "log").read_text()
        yield ssh, port
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def hosts(server, monkeypatch) -> str:
    monkeypatch.setenv("ESCALA_SSH", server[0])
    monkeypatch.setenv("ESCALA_HOSTS", "one:1,two:1")
    return "one,two"


def test_the_script_for_pbs_measures_on_the_hosts_of_its_job(server, tmp_path):
    folder = tmp_path / "my work"
    folder.mkdir()
    (folder / "meeting.py").write_text(MEETING)
    command = "python meeting.py {output} {rows_of_rank}"
    workload = {"command": command, "directory": str(folder), "batch": {"rows": 4, "per": "global"}}
    settings = experiment_on(
        "listed",
        {"meeting": workload},
        oversubscribe=False,
        configurations=[{"strategy": "torch-ddp", "layouts": ["1x1", "2x1"]}],
        references=[{"strategy": "torch-ddp", "layout": "1x1"}],
    )
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings))
    (folder / "nodes").write_text("one\ntwo\n")
    job = {"PBS_JOBID": "12.server", "PBS_NODEFILE": str(folder / "nodes"), "NCPUS": "1"}
    variables = {"PYTHONPATH": str(ROOT), "ESCALA_SSH": server[0]}
    words = ("-m", "escala.command", "submit", "experiment.yaml", "--for", "pbs")
    written = python(*words, cwd=folder, variables=variables)
    assert written.returncode == 0, written.stderr
    script = ["bash", folder / "results/listed/job.sh"]
    done = subprocess.run(
        script, env=os.environ | variables | job, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    files = sorted(folder.glob("results/listed/runs/**/rep*/run.json"))
    runs = {run["layout"]: run for run in map(read_json, files)}
    assert {run["status"] for run in runs.values()} == {"ok"}, runs
    found = {layout: run["ranks"]["hosts"] for layout, run in runs.items()}
    assert found == {"1x1": ["one"], "2x1": ["one", "two"]}
    for run in runs.values():
        assert run["ranks"]["launcher"] == "ssh"
        assert (run["job"]["number"], run["job"]["nodes"]) == ("12-server", ["one", "two"])
        assert [len(cores) for cores in run["ranks"]["cores"]] == [1] * len(run["ranks"]["hosts"])
    for file in folder.glob("results/listed/runs/**/told*.json"):
        assert read_json(file)["connection"].split()[-1] == str(server[1])
    assert runs["2x1"]["link"]["mbit_per_second"] > 0


def test_mpirun_starts_ranks_on_hosts_of_a_list(hosts, tmp_path):
    (tmp_path / "joining.py").write_text(JOINING)
    workload = {"command": "python joining.py", "directory": str(tmp_path)}
    layouts = [{"strategy": "mpi", "layouts": ["2x1"]}]
    references = [{"strategy": "mpi", "layout": "2x1"}]
    settings = experiment_on(
        "joined", {"joining": workload}, configurations=layouts, references=references
    )
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(settings))
    e = load(tmp_path / "experiment.yaml")
    prepare(e, tmp_path / "data")
    request, output = e.request(e.runs[0]), tmp_path / "run" / "run.json"
    measure(request, tmp_path / "data", output, 100, nodes=["one", "two"])
    run = read_json(output)
    assert run["status"] == "ok", run["reason"]
    assert (run["ranks"]["launcher"], run["ranks"]["hosts"]) == ("mpirun", ["one", "two"])
    assert run["evaluation"]["scores"]["world"] == 2


def spawn(hosts: str, processes: int, code: str, **options) -> subprocess.Popen:
    words = ["-m", "escala.runtime.spawn", "--hosts", hosts, str(processes)]
    return subprocess.Popen(
        [sys.executable, *words, sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **options,
    )


def test_the_process_that_fails_on_a_host_is_named_and_the_others_end(hosts):
    code = (
        "import os, sys, time; os.environ['ESCALA_PROCESS'] == '3' and sys.exit(5); time.sleep(99)"
    )
    process = spawn(hosts, 4, code)
    assert "process rank 3 exited with code 5" in process.communicate(timeout=60)[0]
    assert process.returncode == 1


def test_what_was_started_on_hosts_ends_with_the_process_that_started_it(hosts):
    mark = f"mark-{os.getpid()}"
    process = spawn(hosts, 2, f"import time; time.sleep(999)  # {mark}")

    def started() -> list[psutil.Process]:
        code = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])]
        return [words for words in code if words and "-c" in words and mark in words[-1]]

    try:
        assert eventually(lambda: len([w for w in started() if "spawn" not in str(w)]) == 2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert eventually(lambda: not started())


def test_a_host_that_starts_nothing_is_lost(hosts, monkeypatch):
    monkeypatch.setenv("ESCALA_HOSTS", "one,two,nowhere.invalid")
    with pytest.raises(
        InputError, match=r"no longer has nowhere\.invalid, .*: ssh nowhere\.invalid true"
    ):
        asking.require_answers(list(allocation.cores_by_host()))
