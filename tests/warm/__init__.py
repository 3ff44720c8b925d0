"""Start the Python processes of tests as forks of one that has imported what takes long to import.

An import of TensorFlow or PyTorch takes three seconds of a core, a fork some hundredths. `Warm`
starts the server, `server.py`, and names the folder whose `sitecustomize.py` asks it: every process
with this folder on its PYTHONPATH that runs a module of the project is a fork. Each process imports
the project's own modules itself, which may be those of a copy.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from tests.warm.sitecustomize import BEGIN, LEASES, SOCKET

HERE = Path(__file__).resolve().parent
#: Libraries start no threads in the server, which a fork would lack.
ALONE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


class Warm:
    """A server of forks, which ends when the last of those that use it has.

    Parameters
    ----------
    folder : for its sockets, on PYTHONPATH of what is to be forked. All workers name the same one.
    python : the interpreter whose processes are to be forks.
    """

    def __init__(self, folder: Path, python: str = sys.executable):
        folder.mkdir(exist_ok=True)
        self.folder, self._python = folder, python
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._lease = self._leased()
            except OSError:
                self._start()
                self._lease = self._leased()

    def _leased(self) -> socket.socket:
        lease = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        lease.connect(str(self.folder / LEASES))
        return lease

    def _start(self) -> None:
        shutil.copy(HERE / "sitecustomize.py", self.folder)
        sockets = []
        for name in (SOCKET, LEASES):
            (self.folder / name).unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listening.bind(str(self.folder / name))
            listening.listen(128)
            sockets.append(listening)
        numbers = [each.fileno() for each in sockets]
        # Imported here, because few tests need it.
        from escala.runtime import mpi

        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        with open(self.folder / "server.log", "w") as log:
            subprocess.run(
                [self._python, HERE / "server.py", *map(str, numbers)],
                env=environment | mpi.project_mpi() | ALONE,
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                check=True,
            )
        for each in sockets:
            each.close()

    def close(self) -> None:
        self._lease.close()


def put(code: str, folder: Path) -> str:
    """Put code in a folder, and return the PYTHONPATH by which every process begins with it."""
    folder.mkdir(exist_ok=True)
    (folder / BEGIN).write_text(code)
    # For those that are not forks.
    shutil.copy(HERE / "sitecustomize.py", folder)
    others = [path for path in _paths() if not Path(path, BEGIN).exists()]
    return os.pathsep.join(dict.fromkeys([*others, str(folder), str(HERE.parents[1])]))


def _paths() -> list[str]:
    return list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
