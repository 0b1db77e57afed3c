"""What a statement may be: one SELECT (also as WITH, VALUES, FROM, DESCRIBE, SUMMARIZE), or EXPLAIN of one.

DuckDB's own parser says what it is. Its kind alone does not do: DuckDB has SELECTs whose CTEs insert, delete or copy to
files. So the whole tree is looked through, and has nothing in it that is not known here: kinds of queries, places that
rows come from, and functions (`functions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import orjson

from stateside.errors import SqlInvalid
from stateside.serving.sql.functions import TABLE_FUNCTIONS, may_call, may_read
from stateside.serving.sql.question import STATEMENT_CHARS_MAX

_NEXT_STEP: Final = "Send one SELECT, WITH, VALUES, FROM, DESCRIBE or SUMMARIZE statement, or EXPLAIN of one"
_EXPLAIN: Final = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*explain\b(?!\s*\()", re.IGNORECASE | re.DOTALL)
_QUERIES: Final = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_TABLES: Final = {"BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "PIVOT", "SHOW_REF", "SUBQUERY", "TABLE_FUNCTION"}
_ORDERS: Final = {"ASCENDING", "DESCENDING", "ORDER_DEFAULT"}
_MODIFIERS: Final = {"DISTINCT_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "ORDER_MODIFIER"}
_PARTS: Final = frozenset(_QUERIES | _TABLES | _ORDERS | _MODIFIERS)  # what has a `type` and is no expression
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
    """A statement that may run: its text, and the relations that it may mean by the names in it.

    A name that its own WITH defines is among `ctes`; it may mean a relation all the same, somewhere else in the text.
    """

    text: str
    relations: frozenset[Path]
    ctes: frozenset[str]


def checked(connection: duckdb.DuckDBPyConnection, text: str) -> Statement:
    """The statement in a text; SqlInvalid if it is none, several, or one that may not run here."""
    if len(text) > STATEMENT_CHARS_MAX:
        raise SqlInvalid(
            f"The statement has {len(text):,} characters, more than {STATEMENT_CHARS_MAX:,}",
            next_step="Send values as parameters",
        )
    kind = _kind(connection, text)
    explained = _EXPLAIN.match(text) if kind == duckdb.StatementType.EXPLAIN else None
    if kind not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN) or (
        kind == duckdb.StatementType.EXPLAIN and explained is None
    ):
        raise SqlInvalid(f"A statement of the kind {kind.name} cannot run here", next_step=_NEXT_STEP)
    relations, ctes = set[Path](), set[str]()
    for part in _parts(_tree(connection, text if explained is None else text[explained.end() :])):
        _look(part, relations, ctes)
    return Statement(text, frozenset(relations), frozenset(ctes))


def _kind(connection: duckdb.DuckDBPyConnection, text: str) -> duckdb.StatementType:
    try:
        text.encode()
        statements = connection.extract_statements(text)
    except UnicodeEncodeError:
        raise SqlInvalid("The statement is no text: it has half a character", next_step=_NEXT_STEP) from None
    except duckdb.Error as error:
        raise SqlInvalid(str(error), next_step=_NEXT_STEP) from None
    if len(statements) != 1:
        raise SqlInvalid(f"There are {len(statements)} statements in this text, not one", next_step=_NEXT_STEP)
    return statements[0].type


def _tree(connection: duckdb.DuckDBPyConnection, text: str) -> Any:
    (serialized,) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()[0]
    try:
        document = orjson.loads(serialized)
    except orjson.JSONDecodeError:  # deeper than JSON is read
        raise SqlInvalid("The statement is nested too deeply", next_step="Write it in fewer levels") from None
    if document["error"]:
        raise SqlInvalid(document["error_message"], next_step=_NEXT_STEP)
    return document["statements"]


def _parts(tree: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a tree; not recursive, for the tree may be deep."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _look(part: Mapping[str, Any], relations: set[Path], ctes: set[str]) -> None:
    """Take note of the names in one part of the tree; SqlInvalid if it may not be there."""
    if "class" in part:
        _look_at_expression(part)
    elif isinstance(part.get("type"), str):
        _look_at_source(part, relations)
    if "cte_map" in part:
        ctes.update(entry["key"].lower() for entry in part["cte_map"].get("map", ()))


def _look_at_expression(part: Mapping[str, Any]) -> None:
    if part["class"] not in _EXPRESSIONS:
        raise SqlInvalid(f"An expression of the kind {part['class']} cannot stand here", next_step=_NEXT_STEP)
    name = part.get("function_name")
    if name is not None and not may_call(name):
        raise SqlInvalid(f"The function {name} cannot be called here", next_step="Leave it out")
    if part.get("export_state"):
        raise SqlInvalid("The state of an aggregate cannot be exported here", next_step="Leave EXPORT_STATE out")


def _look_at_source(part: Mapping[str, Any], relations: set[Path]) -> None:
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
    if kind == "BASE_TABLE":
        path = tuple(part["qualified_name"]["path"])
        if part.get("at_clause") is not None:
            raise SqlInvalid("AT cannot be used here: a statement reads the newest batch", next_step="Leave it out")
        relations.add(path)
