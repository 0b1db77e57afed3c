"""Which of DuckDB's functions a statement may call.

Files and network are shut off in DuckDB itself (`engine`). Beyond that, functions in the place of a table must be among
those that make rows of their arguments: all others look at files, at DuckDB's own insides, or run text as a statement.
Of the others those are refused that tell of the machine, wait, or are not made for callers: DuckDB uses them inside,
and trusts their arguments.

`tests/serving/sql/functions.txt` has the names of all that were looked through; a test tells when DuckDB has others.
"""

from __future__ import annotations

from typing import Final

TABLE_FUNCTIONS: Final = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "unnest"})

_TELL: Final = {"current_connection_id", "current_query_id", "current_setting", "getenv", "getvariable"}
_WAIT_OR_WRITE: Final = {"pg_sleep", "sleep_ms", "setval", "nextval", "currval", "setseed", "write_log"}
_RUN_TEXT: Final = {"json_deserialize_sql", "json_execute_serialized_sql", "json_serialize_plan", "json_serialize_sql"}
_STATES: Final = {
    "combine",
    "combine_aggr",
    "finalize",
    "to_aggregate_state",
}  # aggregates' states as bytes, which callers could forge
REFUSED_FUNCTIONS: Final = frozenset(_TELL | _WAIT_OR_WRITE | _RUN_TEXT | _STATES | {"parse_duckdb_log_message"})
_REFUSED_PREFIX: Final = "__internal"


def may_call(name: str) -> bool:
    """Whether a statement may call this function in an expression."""
    return name.lower() not in REFUSED_FUNCTIONS and not name.lower().startswith(_REFUSED_PREFIX)


def may_read(name: str) -> bool:
    """Whether a statement may name this function in the place of a table."""
    return name.lower() in TABLE_FUNCTIONS
