"""Fork processes that have imported what takes long: `python server.py SOCKET LEASES`.

Both are descriptors of sockets that listen: of what is to be forked (`sitecustomize.py`), and of
those for whom this process stays. Each call has a fork that waits for its worker, which runs the
module that was asked for, and kills it when whoever asked is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import io
import json
import os
import random
import runpy
import select
import selectors
import signal
import socket
import sys
import threading
from importlib import import_module
from pathlib import Path

#: Runs the code of a test that every process begins with.
_client = runpy.run_path(str(Path(__file__).with_name("sitecustomize.py")))
begin, NAMESPACES = _client["begin"], _client["NAMESPACES"]
#: What the processes of a workflow import, of other projects, where they are installed.
MODULES = (
    "tensorflow", "keras.api._v2.keras", "horovod.tensorflow",
    "snakemake.cli", "snakemake.profiles", "snakemake.report", "snakemake.storage",
    "Bio.Entrez", "Bio.SeqIO", "PIL.Image", "duckdb", "jinja2", "jsonschema", "matplotlib.pyplot",
    "pandas", "psutil", "scipy.optimize", "scipy.stats", "seaborn", "sklearn.linear_model",
    "sklearn.metrics", "sklearn.model_selection", "tenacity", "yaml",
    "jax.experimental.multihost_utils",
    "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.profiler",
)  # fmt: skip


def main(asked: int, leases: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for name in MODULES:
        with contextlib.suppress(ImportError):
            import_module(name)
    assert threading.active_count() == 1 == len(list(Path("/proc/self/task").iterdir()))
    # A collection would copy the memory that a fork shares with this process.
    gc.disable()
    gc.freeze()
    listening = socket.socket(fileno=asked)
    with selectors.DefaultSelector() as selector, socket.socket(fileno=leases) as leasing:
        selector.register(listening, selectors.EVENT_READ)
        selector.register(leasing, selectors.EVENT_READ)
        held = 0
        while True:
            for key, _ in selector.select():
                if key.fileobj is listening:
                    connection, _ = listening.accept()
                    if not os.fork():
                        listening.close()
                        keep(connection)
                    connection.close()
                elif key.fileobj is leasing:
                    selector.register(leasing.accept()[0], selectors.EVENT_READ)
                    held += 1
                else:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    held -= 1
                    if not held:
                        return


def keep(connection: socket.socket) -> None:
    """Start the worker of a call, tell its end, and kill it when nobody waits for it."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, given, _, _ = socket.recv_fds(connection, 8, 250)
    size = int.from_bytes(size, "big")
    message = b""
    while len(message) < size:
        message += connection.recv(size - len(message))
    call = json.loads(message)
    if call["prefix"] != sys.prefix or not joined(given[: len(NAMESPACES)]):
        connection.sendall(b"n")
        os._exit(0)
    connection.sendall(b"y")
    worker = os.fork()
    if not worker:
        connection.close()
        work(call, given[len(NAMESPACES) :])
    for each in given:
        os.close(each)
    ended = os.pidfd_open(worker)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(connection, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == ended:
                code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
                with contextlib.suppress(OSError):
                    connection.sendall(code.to_bytes(8, "big", signed=True))
                os._exit(0)
            numbers = b""
            with contextlib.suppress(OSError):
                numbers = connection.recv(64)
            for number in numbers or [signal.SIGKILL]:
                os.kill(worker, number)
            if not numbers:
                os._exit(0)


def joined(spaces: list[int]) -> bool:
    """Join the namespaces of whoever asked that are others; return whether this succeeded."""
    library = ctypes.CDLL(None)
    return all(
        os.fstat(space).st_ino == Path(f"/proc/self/ns/{name}").stat().st_ino
        or library.setns(space, 0) == 0
        for name, space in zip(NAMESPACES, spaces, strict=True)
    )


def work(call: dict, given: list[int]) -> None:
    """Become the process that was asked for, and end."""
    # Away from the numbers that they are to have.
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 500) for descriptor in given]
    for number, descriptor in zip(call["files"], aside, strict=True):
        os.dup2(descriptor, number)
    for number in call["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(call["environment"])
    os.chdir(call["folder"])
    os.sched_setaffinity(0, call["cores"])
    random.seed()
    # The one of the server takes what it writes to for a file that can be sought.
    written = open(1, "wb", closefd=False)  # noqa: SIM115
    sys.stdout = io.TextIOWrapper(written, encoding="utf-8", line_buffering=os.isatty(1))
    gc.enable()
    sys.orig_argv = call["words"]
    sys.path[:] = call["path"]
    code = 1
    try:
        begin(sys.path)
        run(call["words"][1:])
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        else:
            code = end.code or 0
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def run(words: list[str]) -> None:
    """Run what Python was called with: `-m MODULE …`, or a file."""
    is_module = words[0] == "-m"
    name, *sys.argv[1:] = words[is_module:]
    sys.argv[0] = name
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, str(Path.cwd() if is_module else Path(name).resolve().parent))
    if is_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")


if __name__ == "__main__":
    # An orphan, so that no test takes its forks for processes of the run that it measures.
    if not os.fork():
        main(*map(int, sys.argv[1:]))
