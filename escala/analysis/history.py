"""Keep the measurements of many sessions in a history, and read them with SQL.

    {history}/{session}.{columns}.{digest}.parquet   measurements of one session

`columns` is a digest of the names and types of the columns. `digest` is a digest of all bytes. A
file appears by a rename when it is complete, and never changes. So several processes may add to a
history while others read it. A writer that is killed leaves no incomplete file. Two histories are
merged by copying the files of both into one folder. A file whose bytes do not have the digest of
its name is *damaged*, and is not read.

A measurement in several files counts once. DuckDB only reads and writes the files. No process keeps
a database open, so no process waits for another one.

`ESCALA_HISTORY` names the folder. The default is `.escala/history` in the working directory.
`schemas/history.schema.yaml` describes the columns.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from escala.analysis.tables import schema
from escala.core.errors import InputError
from escala.core.files import atomic, read_yaml, sha256_file
from escala.core.hardware import available_cores

#: The variable that names the folder, and the default.
LOCATION, DEFAULT = "ESCALA_HISTORY", ".escala/history"
SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "history.schema.yaml"
#: Columns of the table `runs` that no history has, because they depend on the folder of results.
FOLDER_COLUMNS = ("current", "comparable", "incomparable_because", "file")
#: The column of the view `documents`, which few queries read.
DOCUMENT = "run"
UNREADABLE = "holds no measurements that can be read"

#: Hexadecimal digits of both digests in a file's name.
_DIGITS, _COLUMN_DIGITS = 16, 8
_SESSION = re.compile(r"[A-Za-z0-9._-]+")
_NAME = re.compile(
    rf"(?P<session>{_SESSION.pattern})\.(?P<columns>[0-9a-f]{{{_COLUMN_DIGITS}}})"
    rf"\.(?P<digest>[0-9a-f]{{{_DIGITS}}})\.parquet"
)
_SQL = {"string": "VARCHAR", "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
#: See `is_measurement`.
_MEASUREMENTS = (
    "CREATE VIEW measurements AS SELECT * FROM runs "
    "WHERE status = 'ok' AND instrument IS NULL AND resumptions = 0"
)
#: DuckDB loads nothing from the network.
_CONFIG = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
#: Most threads of DuckDB, because it may run on a login node.
_THREADS = 4

Row = Mapping[str, Any]


def is_measurement(row: Row) -> bool:
    """Return whether a row of `runs` is in `measurements`: a timing run, ok and never resumed."""
    return row["status"] == "ok" and row["instrument"] is None and row["resumptions"] == 0


class Files(NamedTuple):
    """The files of a history.

    Attributes
    ----------
    intact : paths of files that can be read, in the order of their names.
    damaged : for each file that is not read, the reason.
    """

    intact: list[Path]
    damaged: dict[Path, str]


def location() -> Path:
    """Return the folder of the history, absolute."""
    return Path(os.environ.get(LOCATION) or DEFAULT).absolute()


@cache
def columns() -> dict[str, str]:
    """Return the columns of a measurement in the history, with their types in SQL."""
    schemas = schema("runs")["properties"] | read_yaml(SCHEMA)["properties"]
    types = {name: _sql_type(column) for name, column in schemas.items()}
    for name in FOLDER_COLUMNS:
        del types[name]
    return types | {"started": "TIMESTAMP", DOCUMENT: "VARCHAR"}


def _sql_type(column: Mapping[str, Any]) -> str:
    kind = column["type"] if isinstance(column["type"], str) else column["type"][0]
    return f"{_sql_type(column['items'])}[]" if kind == "array" else _SQL[kind]


def files(folder: Path) -> Files:
    """Find the files of a history, and check their bytes. A missing folder is an empty history."""
    checked = Files([], {})
    for path in sorted(folder.glob("*.parquet")):
        parts = _NAME.fullmatch(path.name)
        try:
            if parts is None:
                checked.damaged[path] = "has no name of a file of a history"
            elif sha256_file(path).startswith(parts["digest"]):
                checked.intact.append(path)
            else:
                checked.damaged[path] = "is not as it was written"
        except OSError as error:
            checked.damaged[path] = f"cannot be read: {error.strerror}"
    return checked


def write(folder: Path, session: str, rows: Iterable[Row]) -> Path:
    """Write measurements of a session into a file of a history, and return its path.

    Parameters
    ----------
    rows : measurements, at least one, with values of `columns`. A value that a row lacks is NULL.

    Raises
    ------
    InputError : the session's name cannot be part of a file's name.
    OSError : the file cannot be written.
    """
    if not _SESSION.fullmatch(session):
        reason = "holds characters other than letters, digits and ._-"
        raise InputError("session", session, reason, "do not add the run")
    types, rows = columns(), list(rows)
    with tempfile.TemporaryDirectory() as temporary, _database() as database:
        written = Path(temporary, "session.parquet")
        _create_table(database, "runs", types)
        # One statement for all rows: a statement for each takes some milliseconds to plan.
        values = ", ".join(f"unnest(?::{sql}[])" for sql in types.values())
        database.execute(
            f"INSERT INTO runs SELECT {values}", [[row.get(name) for row in rows] for name in types]
        )
        try:
            # Snappy, the default, is read faster than zstd.
            database.execute(
                f"COPY (FROM runs ORDER BY started, run_sha256) TO {_quote_path(written)} "
                "(FORMAT parquet)"
            )
        except duckdb.IOException as error:
            # Such as a full disk.
            raise OSError(errno.EIO, str(error), str(written)) from None
        path = folder / name_of(session, types, sha256_file(written))
        with atomic(path) as incoming:
            shutil.copyfile(written, incoming)
    return path


def name_of(session: str, types: Mapping[str, str], sha256: str) -> str:
    """Return a file's name from its session, its columns and the SHA-256 of its bytes."""
    columns_digest = hashlib.sha256(json.dumps(list(types.items())).encode()).hexdigest()
    return f"{session}.{columns_digest[:_COLUMN_DIGITS]}.{sha256[:_DIGITS]}.parquet"


def read(
    folder: Path,
    warn: Callable[[str], object] = warnings.warn,
) -> duckdb.DuckDBPyConnection:
    """Read a history, and return a database to query.

    Damaged files are not read. One warning names all of them.

    Parameters
    ----------
    warn : function that gets the warning; not called without damaged files.

    Returns
    -------
    A database with the views `runs`, `measurements` and `documents`, which reads the files at each
    query.
    """
    checked = files(folder)
    try:
        database = _connect(checked.intact)
    except duckdb.Error:
        # The bytes are as written, but DuckDB cannot read some file. Reading one file at a time
        # shows which.
        for path in list(checked.intact):
            try:
                _connect([path]).close()
            except duckdb.Error:
                checked.intact.remove(path)
                checked.damaged[path] = UNREADABLE
        database = _connect(checked.intact)
    if checked.damaged:
        named = "; ".join(f"{path} {reason}" for path, reason in checked.damaged.items())
        remedy = "remove it, and add its session again or copy it anew"
        warn(f"not read: {named}. Remedy: {remedy}.")
    database.execute(f"CREATE VIEW runs AS SELECT * EXCLUDE ({DOCUMENT}) FROM held")
    database.execute(
        f"CREATE VIEW documents AS SELECT run_sha256, {DOCUMENT}::JSON AS {DOCUMENT} FROM held"
    )
    database.execute(_MEASUREMENTS)
    return database


def _connect(paths: Sequence[Path]) -> duckdb.DuckDBPyConnection:
    """Return a database with a view of some files: `held`, which has each measurement once.

    A query reads only the columns that it names. Files of other versions may have other columns.
    Files with equal columns are read together: comparing the columns of each file takes DuckDB
    several times as long.
    """
    database = _database()
    database.execute("SET parquet_metadata_cache = true")
    _create_table(database, "declared", columns())
    by_columns: dict[str, list[str]] = {}
    for path in paths:
        # DuckDB interprets a path as a pattern.
        literal = _quote_path(glob.escape(str(path)))
        by_columns.setdefault(_NAME.fullmatch(path.name)["columns"], []).append(literal)
    tables = [f"read_parquet([{', '.join(literals)}])" for literals in by_columns.values()]
    rows = " UNION ALL BY NAME ".join(f"FROM {table}" for table in ["declared", *tables])
    # A file may contain a measurement without its ratio, from before the reference was added.
    database.execute(
        f"CREATE VIEW held AS SELECT * FROM ({rows}) QUALIFY "
        "row_number() OVER (PARTITION BY run_sha256 ORDER BY ratio IS NULL) = 1"
    )
    return database


class Table(NamedTuple):
    """The result of a query: names of the columns, and rows of values of Python."""

    columns: list[str]
    rows: list[tuple]


def query(database: duckdb.DuckDBPyConnection, sql: str) -> Table:
    """Return the result of a query on a history.

    Raises
    ------
    InputError : the query is not SQL, or names a table or column that does not exist.
    """
    try:
        result = database.execute(sql)
        if result is None:
            raise InputError("--sql", sql, "is empty", "write a query, such as FROM runs")
        return Table([name for name, *_ in result.description or ()], result.fetchall())
    except duckdb.Error as error:
        message = " ".join(str(error).split("\n\n")[0].split())
        remedy = "docs/how-to/history.md lists tables and examples"
        raise InputError("--sql", sql, message, remedy) from None


def _database() -> duckdb.DuckDBPyConnection:
    threads = min(_THREADS, len(available_cores()))
    return duckdb.connect(config={**_CONFIG, "threads": threads})


def _create_table(
    database: duckdb.DuckDBPyConnection, table: str, types: Mapping[str, str]
) -> None:
    declared = ", ".join(f'"{name}" {sql}' for name, sql in types.items())
    database.execute(f"CREATE TABLE {table} ({declared})")


def _quote_path(path: Path | str) -> str:
    """Return a path as a string in SQL."""
    return "'" + str(path).replace("'", "''") + "'"


def document(run: Mapping[str, Any]) -> str:
    """Return the content of a run.json as text. Equal content gives equal text."""
    return json.dumps(run, sort_keys=True, separators=(",", ":"))
