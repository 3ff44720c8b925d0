"""Keep records of the lab's jobs, which `sacct` reads: `slurmdbd` on a MariaDB of its own.

The database is in the lab's spool. It listens on a Unix socket only, in a folder of root's own.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress

from escala.core.errors import InputError
from escala.lab import daemons
from escala.lab.state import FOLDER, LOGS, SPOOL, Lab, call

#: Program -> its Debian package.
PROGRAMS = {
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    # mariadb-install-db calls it.
    "my_print_defaults": "mariadb-client-core",
    "slurmdbd": "slurmdbd",
    "sacct": "slurm-client",
    "sacctmgr": "slurm-client",
}
#: Folder of the database.
DATABASE = SPOOL / "database"
_SOCKET = DATABASE / "socket"
# The default is a log of 96 MiB.
_OPTIONS = (f"--datadir={DATABASE}", "--innodb-log-file-size=8M")
_READY_SECONDS = 60
#: MariaDB has no option to go to the background.
_BACKGROUND = '"$@" >>"$0" 2>&1 &'

# NoInAddrAny: it listens only on the address of its host name.
_DBD = f"""\
AuthType=auth/munge
AuthInfo=socket={daemons.SOCKET}
DbdHost={daemons.SCHEDULER}
DbdAddr={{address}}
CommunicationParameters=NoInAddrAny
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=escala
LogFile={LOGS}/slurmdbd.log
PidFile={FOLDER}/slurmdbd.pid
"""


def require_programs() -> None:
    """Refuse a machine without the programs that accounting takes.

    Raises
    ------
    InputError : some are not installed.
    """
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        packages = " ".join(sorted({PROGRAMS[program] for program in lacking}))
        raise InputError(
            "lab --accounting",
            ", ".join(lacking),
            "not found",
            f"on Debian: apt-get install --no-install-recommends {packages}; or leave it out",
        )


def settings(lab: Lab) -> dict[str, str]:
    """Return the keys of SLURM's configuration by which jobs are recorded."""
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": lab.scheduler,
        # With MUNGE, this is its socket.
        "AccountingStoragePass": str(daemons.SOCKET),
    }


def runs() -> bool:
    """Return whether the lab keeps records of its jobs."""
    return any(process.name() == "slurmdbd" for process in daemons.processes())


def start(lab: Lab, cluster: str) -> None:
    """Start the database and `slurmdbd`, and wait until it knows the cluster.

    Raises
    ------
    OSError : one of them does not start.
    """
    DATABASE.mkdir(mode=0o700, parents=True)
    # Without --user: it would also give that user a folder of the machine's own MariaDB.
    call(
        "mariadb-install-db",
        *("--no-defaults", *_OPTIONS, "--auth-root-socket-user=root", "--skip-test-db"),
        timeout=_READY_SECONDS,
    )
    daemons.start(
        "sh",
        "-c",
        _BACKGROUND,
        str(LOGS / "mariadbd.log"),
        *("mariadbd", "--no-defaults", *_OPTIONS, "--user=root", "--skip-networking"),
        *(f"--socket={_SOCKET}", f"--pid-file={FOLDER}/mariadbd.pid"),
    )
    configuration = FOLDER / "slurmdbd.conf"
    # slurmdbd refuses a file that others may read.
    configuration.touch(mode=0o600)
    configuration.write_text(_DBD.format(address=lab.scheduler))
    _until_it_answers(_SOCKET.exists, "mariadbd")
    daemons.start_scheduler(
        "slurmdbd", SLURM_CONF=str(FOLDER / "slurm.conf"), MYSQL_UNIX_PORT=str(_SOCKET)
    )
    _until_it_answers(lambda: _registered(cluster), "slurmdbd")


def _registered(cluster: str) -> bool:
    """Register the cluster, and return whether `slurmdbd` knows it."""
    with suppress(OSError):
        call("sacctmgr", "--immediate", "add", "cluster", cluster, timeout=15)
    try:
        listed = call("sacctmgr", "--noheader", "list", "cluster", "format=cluster", timeout=15)
    except OSError:
        return False
    return cluster in listed.split()


def _until_it_answers(answers: Callable[[], bool], name: str) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not answers():
        if time.monotonic() > deadline:
            raise TimeoutError(0, f"does not answer after {_READY_SECONDS} s", name)
        time.sleep(0.2)
