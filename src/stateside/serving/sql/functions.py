"""Which of DuckDB's functions a statement may call.

Files and network are shut off in DuckDB itself (`engine`). Beyond that, a function in the place of a table must be one
that makes rows of its arguments: all others look at files, at DuckDB's own insides, or run text as a statement. A
function in an expression must be among `known_functions.txt`, the functions that were looked through, and not among
those refused here: they tell of the machine, wait, or are made for DuckDB itself, which trusts their arguments. So a
function that a later DuckDB brings is refused until somebody has judged it; a test tells of such ones.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

TABLE_FUNCTIONS: Final = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "unnest"})

_TELL: Final = {"current_connection_id", "current_query_id", "current_setting", "getenv", "getvariable"}
_LOOK_INSIDE: Final = {"get_block_size", "pg_get_constraintdef", "pg_get_viewdef"}  # macros over the catalogue
_WAIT_OR_WRITE: Final = {"pg_sleep", "sleep_ms", "setval", "nextval", "currval", "setseed", "write_log"}
_RUN_TEXT: Final = {"json_deserialize_sql", "json_execute_serialized_sql", "json_serialize_plan", "json_serialize_sql"}
_STATES: Final = {
    "combine",
    "combine_aggr",
    "finalize",
    "to_aggregate_state",
}  # aggregates' states as bytes, which callers could forge
REFUSED_FUNCTIONS: Final = frozenset(
    _TELL | _LOOK_INSIDE | _WAIT_OR_WRITE | _RUN_TEXT | _STATES | {"parse_duckdb_log_message"}
)
_REFUSED_PREFIX: Final = "__internal"


@cache
def known_functions() -> frozenset[str]:
    """The functions that were looked through, in small letters."""
    return frozenset((files(__package__) / "known_functions.txt").read_text().lower().split())


def may_call(name: str) -> bool:
    """Whether a statement may call this function in an expression."""
    folded = name.lower()
    refused = folded in REFUSED_FUNCTIONS or folded.startswith(_REFUSED_PREFIX)
    return folded in known_functions() and not refused


def may_read(name: str) -> bool:
    """Whether a statement may name this function in the place of a table."""
    return name.lower() in TABLE_FUNCTIONS
