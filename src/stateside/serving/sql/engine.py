"""The DuckDB that a statement runs in: one for it alone, in memory, shut off from everything outside of it.

No files, no network, no extensions, none of Python's variables as tables, no configuration that a statement could
change, no files to spill to. It has only what is registered with it, and it is gone when the statement ends: nothing of
one holder's statement is there for the next one's.
"""

from __future__ import annotations

import re
from typing import Final

import duckdb

from stateside.errors import SqlInvalid, SqlTooLarge, StatesideError

MEMORY_BYTES_MAX = 512 << 20  # of one statement, beside the rows that it reads
THREADS = 2

_SETTINGS: Final[dict[str, str | int | float | list[str]]] = {
    "allow_community_extensions": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": f"{MEMORY_BYTES_MAX >> 20}MiB",
    "python_enable_replacements": False,
    "temp_directory": "",
    "threads": THREADS,
}
_NO_ACCESS: Final = ("Permission Error", "IO Error", "HTTP Error", "Missing Extension Error", "Dependency Error")
_INSIDE: Final = ("INTERNAL Error", "FATAL Error")
_PATH: Final = re.compile(r"(?<![\w/])/(?:[\w.+-]+/)+[\w.+-]*")


def open_engine() -> duckdb.DuckDBPyConnection:
    """A DuckDB for one statement; whoever opens it closes it."""
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    connection.execute("CREATE SCHEMA archive")
    for setting in ("allowed_paths = []", "allowed_directories = []", "enable_external_access = false"):
        connection.execute(f"SET {setting}")  # in this order: at `connect` DuckDB would allow a file called :memory:
    connection.execute("SET lock_configuration = true")
    return connection


def told(error: Exception, statement: str) -> StatesideError:
    """What the reader is told of an error of DuckDB's: nothing of this machine."""
    text = str(error).strip()
    if "Out of Memory Error" in text:
        return SqlTooLarge(
            f"The statement needs more than {MEMORY_BYTES_MAX >> 20} MiB of memory",
            next_step="Let it group, sort or join less at a time: add a WHERE, or fewer columns",
        )
    if text.startswith(_NO_ACCESS):
        return SqlInvalid("A statement reaches no files, no network and no extensions", next_step="Leave that out")
    if any(inside in text for inside in _INSIDE):
        return SqlInvalid("DuckDB failed inside of this statement", next_step="Write it in another way")
    return SqlInvalid(_PATH.sub(lambda found: _own(found[0], statement), text), next_step="Mend the statement")


def _own(path: str, statement: str) -> str:
    """A path that the statement itself has may be told."""
    return path if path in statement else "…"
