"""What a Python process of a test begins with: the code of the test, or a fork that has imported.

Python imports this module as it starts, where PYTHONPATH names its folder. A process of the project
asks the server next to it for a fork that goes on in its place, and passes on signals and the end.
Without a server, or for another interpreter, it goes on by itself.
"""

from __future__ import annotations

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
#: Sockets in `FOLDER`, and what begins with code of a test, in a folder on Python's path.
SOCKET, LEASES, BEGIN = "socket", "leases", "begin.py"
PACKAGES = ("escala", "scripts", "snakemake", "tests")
#: Namespaces of Linux that a fork joins: those of a node of the lab, or of a private network.
NAMESPACES = ("net", "uts", "mnt")
#: Signals that a process passes on.
PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


def is_of_project(words: list[str]) -> bool:
    """Tell whether a process runs a module of the project, a script of its tests, or Snakemake."""
    if words[:1] == ["-m"]:
        return words[1].partition(".")[0] in PACKAGES
    return words[:1] != [] and (
        os.path.basename(words[0]) == "snakemake" or os.sep + "tests" + os.sep in words[0]
    )


def begin(path: list[str]) -> None:
    """Run the code that a test has put in a folder of Python's path."""
    for folder in path:
        file = os.path.join(folder, BEGIN)
        if os.path.isfile(file):
            with open(file) as code:
                exec(compile(code.read(), file, "exec"), {"__name__": "begin"})


def is_inherited(number: int) -> bool:
    """Tell whether a descriptor is one that this process was started with, and not its own."""
    import fcntl

    try:
        return not fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    except OSError:
        return False


def ask() -> None:
    """Let a fork of the server do the work of this process, and end as it does."""
    import json
    import signal
    import socket

    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect(os.path.join(FOLDER, SOCKET))
    except OSError:
        return
    # Those that a shell gives besides 0, 1 and 2.
    files = [number for number in map(int, os.listdir("/proc/self/fd")) if is_inherited(number)]
    numbers = [getattr(signal, name) for name in PASSED_ON]
    ignored = [number for number in numbers if signal.getsignal(number) == signal.SIG_IGN]
    call = {
        "prefix": sys.prefix,
        "words": sys.orig_argv,
        "path": sys.path,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "cores": list(os.sched_getaffinity(0)),
        "ignored": ignored,
        "files": files,
    }
    before = {number: signal.getsignal(number) for number in numbers}
    message = json.dumps(call).encode()
    spaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in set(numbers) - set(ignored):
        signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    try:
        socket.send_fds(server, [len(message).to_bytes(8, "big")], [*spaces, *files])
        server.sendall(message)
        taken = server.recv(1) == b"y"
    except OSError:
        # The server has just ended.
        taken = False
    for each in spaces:
        os.close(each)
    if not taken:
        for number, handler in before.items():
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    if not taken:
        server.close()
        return
    answer = server.recv(8)
    code = int.from_bytes(answer, "big", signed=True) if answer else -signal.SIGKILL
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "sitecustomize":
    if is_of_project(sys.orig_argv[1:]):
        ask()
    begin(sys.path)
