"""The statement check: allows one SELECT (also as WITH, VALUES, FROM, DESCRIBE, SUMMARIZE), or EXPLAIN of one.

DuckDB's own parser makes a tree of the text. The text that runs is written from the tree, never the text that was sent:

    text       parsed       as one statement, SELECT or EXPLAIN; of EXPLAIN, the text after the word
    tree       written      as DuckDB writes a tree: without comments, in one spelling
    written    parsed       and this tree is walked: every part must be on an allow list

So no comment, quote or line end can make the checked statement differ from the one that runs. The statement's kind
alone is not enough: DuckDB has SELECTs whose CTEs insert, delete or copy to files. Allowed are listed kinds of queries,
sources of rows, and functions; a name is a relation's unless an enclosing WITH defines the name.

Functions: DuckDB itself shuts off files and network (`execution`). Beyond that, a table function must make rows of its
arguments: all others read files or DuckDB's internals, or run text as a statement. A function in an expression must be
in `known_functions.txt`, the list of reviewed functions, and not refused here: refused functions report on the machine,
wait, or serve DuckDB itself, which trusts their arguments. A function of a later DuckDB is refused until reviewed; a
test reports new functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import duckdb
import orjson

from stateside.core.errors import SqlInvalid
from stateside.serving.sql.sql_query import STATEMENT_CHARS_MAX

TABLE_FUNCTIONS: Final = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "unnest"})
_TELL: Final = {"current_connection_id", "current_query_id", "current_setting", "getenv", "getvariable"}
_LOOK_INSIDE: Final = {"get_block_size", "pg_get_constraintdef", "pg_get_viewdef"}  # macros over DuckDB's catalogue
_WAIT_OR_WRITE: Final = {"pg_sleep", "sleep_ms", "setval", "nextval", "currval", "setseed", "write_log"}
_RUN_TEXT: Final = {"json_deserialize_sql", "json_execute_serialized_sql", "json_serialize_plan", "json_serialize_sql"}
_STATES: Final = {
    "combine",
    "combine_aggr",
    "finalize",
    "to_aggregate_state",
}  # aggregate states as bytes, which a client could forge
REFUSED_FUNCTIONS: Final = frozenset(
    _TELL | _LOOK_INSIDE | _WAIT_OR_WRITE | _RUN_TEXT | _STATES | {"parse_duckdb_log_message"}
)
_REFUSED_PREFIX: Final = "__internal"


@cache
def known_functions() -> frozenset[str]:
    """The reviewed functions, in lower case."""
    return frozenset((files(__package__) / "known_functions.txt").read_text().lower().split())


def may_call(name: str) -> bool:
    """Whether a statement may call this function in an expression."""
    folded = name.lower()
    refused = folded in REFUSED_FUNCTIONS or folded.startswith(_REFUSED_PREFIX)
    return folded in known_functions() and not refused


def may_read(name: str) -> bool:
    """Whether a statement may use this function as a table."""
    return name.lower() in TABLE_FUNCTIONS


_NEXT_STEP: Final = "Send one SELECT, WITH, VALUES, FROM, DESCRIBE or SUMMARIZE statement, or EXPLAIN of one"
_EXPLAIN: Final = "EXPLAIN"
_QUERIES: Final = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE"}
_TABLES: Final = {"BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "PIVOT", "SHOW_REF", "SUBQUERY", "TABLE_FUNCTION"}
_ORDERS: Final = {"ASCENDING", "DESCENDING", "ORDER_DEFAULT"}
_MODIFIERS: Final = {"DISTINCT_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "ORDER_MODIFIER"}
_PARTS: Final = frozenset(_QUERIES | _TABLES | _ORDERS | _MODIFIERS)  # nodes with a `type` that are no expressions
_VALUES: Final = {
    "COLUMN_REF",
    "CONSTANT",
    "DEFAULT",
    "LAMBDA_REF",
    "PARAMETER",
    "POSITIONAL_REFERENCE",
    "STAR",
    "TYPE",
}
_OPERATIONS: Final = {
    "BETWEEN",
    "CASE",
    "CAST",
    "COLLATE",
    "COMPARISON",
    "CONJUNCTION",
    "FUNCTION",
    "LAMBDA",
    "OPERATOR",
}
_EXPRESSIONS: Final = frozenset(_VALUES | _OPERATIONS | {"SUBQUERY", "WINDOW"})
_SHOWN: Final = frozenset({"DESCRIBE", "SUMMARY"})
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """An allowed statement, as DuckDB parsed it, and the relation names in it."""

    parsed: duckdb.Statement
    relations: frozenset[Path]


def checked(connection: duckdb.DuckDBPyConnection, text: str) -> Statement:
    """The checked statement; SqlInvalid unless the text is one allowed statement. DuckDB's errors pass through."""
    if len(text) > STATEMENT_CHARS_MAX:
        raise SqlInvalid(
            f"The statement has {len(text):,} characters, more than {STATEMENT_CHARS_MAX:,}",
            next_step="Send values as parameters",
        )
    given = _parsed(connection, text)
    explains = _kind(given) == _EXPLAIN
    written = _written(connection, _explained(given.query) if explains else text)
    relations = frozenset(_relations(_tree(connection, written), _own_views(connection)))
    return Statement(_parsed(connection, f"{_EXPLAIN} {written}" if explains else written), relations)


def _parsed(connection: duckdb.DuckDBPyConnection, text: str) -> duckdb.Statement:
    try:
        text.encode()
        statements = connection.extract_statements(text)
    except UnicodeEncodeError:
        raise SqlInvalid("The statement is no text: it has half a character", next_step=_NEXT_STEP) from None
    except duckdb.Error as error:
        raise SqlInvalid(str(error), next_step=_NEXT_STEP) from None
    if len(statements) != 1:
        raise SqlInvalid(f"There are {len(statements)} statements in this text, not one", next_step=_NEXT_STEP)
    kind = _kind(statements[0])
    if kind not in ("SELECT", _EXPLAIN):
        raise SqlInvalid(f"A statement of the kind {kind} cannot run here", next_step=_NEXT_STEP)
    return statements[0]


def _kind(statement: duckdb.Statement) -> str:
    try:
        return statement.type.name
    except ValueError:  # DuckDB's parser has more kinds than Python names
        return "OTHER"


def _explained(query: str) -> str:
    """The statement after EXPLAIN; DuckDB returns the text from the first word on."""
    if query[: len(_EXPLAIN)].upper() != _EXPLAIN:
        raise SqlInvalid("EXPLAIN is not the first word of this statement", next_step=_NEXT_STEP)
    return query[len(_EXPLAIN) :]


def _written(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    """A SELECT as DuckDB writes its tree; SqlInvalid for anything else."""
    serialized = _serialized(connection, text)
    (written,) = connection.execute("SELECT json_deserialize_sql(?::JSON)", [serialized]).fetchall()[0]
    return str(written)


def _tree(connection: duckdb.DuckDBPyConnection, text: str) -> Any:
    return orjson.loads(_serialized(connection, text))["statements"]


def _serialized(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    (serialized,) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()[0]
    try:
        document = orjson.loads(serialized)
    except orjson.JSONDecodeError:  # nested deeper than orjson reads
        raise SqlInvalid("The statement is nested too deeply", next_step="Write it in fewer levels") from None
    if document["error"]:
        no_select = document["error_type"] == "not implemented"
        raise SqlInvalid("This is no SELECT" if no_select else document["error_message"], next_step=_NEXT_STEP)
    if len(document["statements"]) != 1:
        raise SqlInvalid("There is not one statement in this text", next_step=_NEXT_STEP)
    return str(serialized)


def _own_views(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """DuckDB's own views that need no schema before their names."""
    found = connection.execute(
        "SELECT view_name FROM duckdb_views() WHERE internal AND schema_name IN ('main', 'pg_catalog')"
    )
    return frozenset(name.lower() for (name,) in found.fetchall())


def _relations(tree: Any, own_views: frozenset[str]) -> Iterator[Path]:
    """The relation names in a tree; SqlInvalid for a part that is not allowed.

    Not recursive, since the tree may be deep. Each part carries the names that enclosing WITHs define.
    """
    waiting: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while waiting:
        part, ctes = waiting.pop()
        if isinstance(part, list):
            waiting.extend((each, ctes) for each in part)
        elif isinstance(part, dict):
            _look(part, own_views)
            if part.get("type") == "BASE_TABLE":
                path = tuple(part["qualified_name"]["path"])
                if len(path) != 1 or path[0].lower() not in ctes:
                    yield path
            waiting.extend(_inside(part, ctes))


def _inside(part: Mapping[str, Any], ctes: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    """The children of a part. A CTE is visible to later CTEs and the query; a recursive CTE to its second half too."""
    for entry in part.get("cte_map", {}).get("map", ()):
        yield entry["value"], ctes
        ctes |= {entry["key"].lower()}
    for name, value in part.items():
        recurs = name == "right" and part.get("type") == "RECURSIVE_CTE_NODE"
        if name != "cte_map":
            yield value, ctes | {part["cte_name"].lower()} if recurs else ctes


def _look(part: Mapping[str, Any], own_views: frozenset[str]) -> None:
    """SqlInvalid if this part of the tree is not allowed."""
    if "class" in part:
        _look_at_expression(part)
    elif isinstance(part.get("type"), str):
        _look_at_source(part)
    for entry in part.get("cte_map", {}).get("map", ()):
        if entry["key"].lower() in own_views:
            raise SqlInvalid(
                f"WITH cannot define {entry['key'][:80]}, which is a view of DuckDB's own",
                next_step="Give it another name",
            )


def _look_at_expression(part: Mapping[str, Any]) -> None:
    if part["class"] not in _EXPRESSIONS:
        raise SqlInvalid(f"An expression of the kind {part['class']} cannot stand here", next_step=_NEXT_STEP)
    name = part.get("function_name")
    if name is not None and not may_call(name):
        raise SqlInvalid(f"There is no function {name[:80]} that can be called here", next_step="Leave it out")
    if part.get("export_state"):
        raise SqlInvalid("The state of an aggregate cannot be exported here", next_step="Leave EXPORT_STATE out")


def _look_at_source(part: Mapping[str, Any]) -> None:
    kind = part["type"]
    if kind not in _PARTS:
        what = kind.removesuffix("_NODE").removesuffix("_QUERY").replace("_", " ")
        raise SqlInvalid(f"{what} cannot be part of a statement here", next_step="Statements only read")
    if kind == "TABLE_FUNCTION" and not may_read(part["function"].get("function_name", "")):
        name = part["function"].get("function_name", "this")
        raise SqlInvalid(
            f"The function {name} cannot be read from here",
            next_step=f"Functions that rows can come from: {', '.join(sorted(TABLE_FUNCTIONS))}",
        )
    if kind == "SHOW_REF" and (part["show_type"] not in _SHOWN or part["query"] is None):
        raise SqlInvalid("SHOW cannot list what there is", next_step="GET /v1/sql lists the relations")
    if kind == "BASE_TABLE" and part.get("at_clause") is not None:
        raise SqlInvalid("AT cannot be used here: a statement reads the newest batch", next_step="Leave it out")
