"""Keep records of the lab's jobs, which `sacct` reads: `slurmdbd` on a MariaDB of its own.

The database is in the lab's spool, and listens on a Unix socket only.
"""

from __future__ import annotations

import shutil
import time
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
_DATA = SPOOL / "database"
_SOCKET = FOLDER / "database.socket"
_READY_SECONDS = 60
#: MariaDB has no option to go to the background.
_BACKGROUND = '"$@" >>"$0" 2>&1 &'

# `NoInAddrAny` is for slurmctld; slurmdbd listens on every address, and MUNGE authenticates.
_DBD = f"""\
AuthType=auth/munge
AuthInfo=socket={daemons.SOCKET}
DbdHost={daemons.SCHEDULER}
DbdAddr={{address}}
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
            "--accounting",
            ", ".join(lacking),
            "not found",
            f"on Debian: apt-get install --no-install-recommends {packages}; or leave it out",
        )


def settings(lab: Lab) -> dict[str, str]:
    """Return the keys of SLURM's configuration by which jobs are recorded."""
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": lab.scheduler,
    }


def start(lab: Lab, cluster: str) -> None:
    """Start the database and `slurmdbd`, and wait until it knows the cluster.

    Raises
    ------
    OSError : one of them does not start.
    """
    _DATA.mkdir(parents=True)
    call(
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={_DATA}",
        "--user=root",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        timeout=120,
    )
    options = [f"--datadir={_DATA}", f"--socket={_SOCKET}", f"--pid-file={FOLDER}/mariadbd.pid"]
    daemons.start(
        "sh",
        "-c",
        _BACKGROUND,
        str(LOGS / "mariadbd.log"),
        *("mariadbd", "--no-defaults", "--user=root", "--skip-networking", *options),
    )
    configuration = FOLDER / "slurmdbd.conf"
    # slurmdbd refuses a file that others may read.
    configuration.touch(mode=0o600)
    configuration.write_text(_DBD.format(address=lab.scheduler))
    _until_it_answers(_SOCKET.exists, "mariadbd")
    daemons.start_on_scheduler(
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


def _until_it_answers(answers, name: str) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not answers():
        if time.monotonic() > deadline:
            raise TimeoutError(0, f"does not answer after {_READY_SECONDS} s", name)
        time.sleep(0.2)
