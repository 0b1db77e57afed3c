"""Statements that reach for what is not theirs: files, network, configuration, the machine, other tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import SqlInvalid, StatesideError
from stateside.serving.sql.execution import open_engine
from stateside.serving.sql.statement import TABLE_FUNCTIONS, checked, known_functions
from tests.sizes import sized, some

from .asking import Asker

WRITES = [
    "INSERT INTO spending VALUES ('x', 'de', 1, 1, 1)",
    "DELETE FROM spending",
    "UPDATE spending SET total = 0",
    "CREATE TABLE t AS SELECT 1",
    "CREATE VIEW v AS SELECT 1",
    "CREATE MACRO m() AS 1",
    "CREATE SECRET s (TYPE s3)",
    "DROP VIEW spending",
    "ALTER TABLE spending ADD COLUMN c INTEGER",
    "WITH t AS (INSERT INTO spending VALUES ('x', 'de', 1, 1, 1) RETURNING *) SELECT * FROM t",
    "WITH t AS (DELETE FROM spending RETURNING *) SELECT * FROM t",
    "WITH t AS (UPDATE spending SET total = 0 RETURNING *) SELECT * FROM t",
    "WITH t AS (COPY spending TO '{folder}/out.csv') SELECT * FROM t",
    "SELECT * FROM (WITH t AS (DELETE FROM spending RETURNING *) SELECT * FROM t)",
    "MERGE INTO spending USING spending s ON true WHEN MATCHED THEN DELETE",
    "TRUNCATE spending",
    "BEGIN",
    "COMMIT",
    "VACUUM",
    "ANALYZE",
    "CHECKPOINT",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
]
REACHES_OUT = [
    "COPY spending TO '{folder}/out.csv'",
    "COPY (SELECT 1) TO '{folder}/out.parquet' (FORMAT parquet)",
    "EXPORT DATABASE '{folder}/out'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{folder}/other.db'",
    "DETACH memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "FORCE INSTALL json",
    "UPDATE EXTENSIONS",
    "SELECT * FROM '{secret}'",
    'SELECT * FROM "{secret}"',
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_blob('{secret}')",
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_csv_auto('{secret}')",
    "SELECT * FROM read_json('{secret}')",
    "SELECT * FROM read_json_objects('{secret}')",
    "SELECT * FROM read_parquet('{secret}')",
    "SELECT * FROM parquet_scan('{secret}')",
    "SELECT * FROM parquet_metadata('{secret}')",
    "SELECT * FROM read_duckdb('{secret}')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM Read_Text('{secret}')",
    "SELECT * FROM \"read_text\"('{secret}')",
    "SELECT * FROM main.read_text('{secret}')",
    "SELECT * FROM system.main.read_text('{secret}')",
    "SELECT * FROM read_text('https://example.com/x')",
    "SELECT * FROM 'https://example.com/x.csv'",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "SELECT (SELECT content FROM read_text('{secret}'))",
    "SELECT * FROM spending WHERE total IN (SELECT size FROM read_text('{secret}'))",
    "EXPLAIN SELECT * FROM read_text('{secret}')",
    "EXPLAIN ANALYZE SELECT * FROM read_text('{secret}')",
    "EXPLAIN COPY spending TO '{folder}/out.csv'",
    "EXPLAIN ANALYZE INSERT INTO spending VALUES ('x', 'de', 1, 1, 1)",
    "DESCRIBE SELECT * FROM read_text('{secret}')",
    "SUMMARIZE '{secret}'",
    "FROM query('SELECT * FROM read_text(''{secret}'')')",
    "FROM query_table('{secret}')",
    "FROM query_table(['spending', '{secret}'])",
    "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT json_serialize_plan('SELECT * FROM read_text(''{secret}'')')",
    "FROM arrow_scan(1, 2, 3)",
    "FROM python_map_function(1)",
    "FROM pandas_scan(1)",
    "FROM create_external_resource('x')",
]
LOOKS_AROUND = [
    "SET memory_limit = '100GB'",
    "SET threads = 64",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET VARIABLE x = 1",
    "RESET memory_limit",
    "USE memory",
    "PRAGMA version",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "CALL pragma_version()",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "SHOW DATABASES",
    "DESCRIBE",
    "SELECT getenv('HOME')",
    "SELECT current_setting('temp_directory')",
    "SELECT CURRENT_SETTING('secret_directory')",
    "SELECT getvariable('x')",
    "SELECT list_transform([1], lambda x: current_setting('threads'))",
    "SELECT sum(1) FILTER (WHERE current_setting('threads') = '2')",
    "SELECT 1 ORDER BY current_setting('threads')",
    "SELECT 1 LIMIT (SELECT current_setting('threads')::INTEGER)",
    "SELECT row_number() OVER (ORDER BY current_setting('threads'))",
    "SELECT sleep_ms(1)",
    "SELECT pg_sleep(1)",
    "SELECT pg_catalog.pg_sleep(1)",
    "SELECT (1).sleep_ms()",
    "SELECT write_log('x')",
    "SELECT __internal_decompress_string(1)",
    "FROM duckdb_settings()",
    "FROM duckdb_secrets()",
    "FROM duckdb_extensions()",
    "FROM duckdb_databases()",
    "FROM duckdb_functions()",
    "FROM duckdb_logs()",
    "FROM duckdb_memory()",
    "FROM duckdb_tables",
    "FROM duckdb_settings",
    "FROM information_schema.tables",
    "FROM pg_catalog.pg_class",
    "FROM pg_settings",
    "FROM sqlite_master",
    "FROM main.sqlite_master",
    "FROM system.information_schema.tables",
    "FROM memory.main.spending",
    "FROM temp.spending",
    "FROM which_secret('s3://x', 's3')",
    "FROM pragma_version()",
    "FROM pragma_platform()",
    "FROM pragma_database_size()",
    "FROM enable_logging()",
    "FROM checkpoint()",
    "FROM test_all_types()",
    "FROM os",
    "FROM asker",
    "FROM self",
    "FROM nothing",
    "FROM archive.nothing",
    "FROM spending__by_nothing",
]
_COPY = "COPY (SELECT repeat('x', 1000) FROM range(2000)) TO '{folder}/:memory:' (FORMAT csv)"
HIDDEN = [  # one text for whoever looks at the text, another for DuckDB, whose comments nest and end at a CR too
    f"/* /* */ explain select 1 -- */ EXPLAIN ANALYZE {_COPY}",
    f"/* /* */ explain select 1 -- */ */ EXPLAIN ANALYZE {_COPY}",
    f"-- x\rEXPLAIN ANALYZE {_COPY} -- \nexplain select 1",
    f"EXPLAIN -- \rANALYZE {_COPY}",
    f"EXPLAIN /* /* */ select 1 -- */ ANALYZE {_COPY}",
    f"EXPLAIN /* /* */ select 1 */ ANALYZE {_COPY}",
    f"EXPLAIN (ANALYZE) {_COPY}",
    f"EXPLAIN/**/(ANALYZE, FORMAT json) {_COPY}",
    f"\ufeffEXPLAIN\u00a0ANALYZE\u2003{_COPY}",
    f"EXPLAIN ANALYZE {_COPY}",
    f"EXPLAIN EXPLAIN ANALYZE {_COPY}",
    f"SELECT 1 --\r; {_COPY}",
    f"SELECT $$ -- $$; {_COPY}",
    f"SELECT $x$ $$ $x$; {_COPY} --$$",
    f"PREPARE p AS {_COPY}",
    "/* /* */ explain select 1 -- */ EXPLAIN ANALYZE SELECT getenv('HOME')",
    "/* /* */ explain select 1 -- */ EXPLAIN SELECT current_setting('allowed_paths')",
    "/* /* */ explain select 1 -- */ */ EXPLAIN SELECT current_setting('temp_directory')",
    "-- x\rEXPLAIN SELECT getenv('HOME') -- \nexplain select 1",
    "-- \rSELECT getenv('HOME')",
    "SELECT 1 -- \r, getenv('HOME')",
    "SELECT /* /* */ 1, */ getenv('HOME')",
    "SELECT $a$ -- $a$, getenv('HOME')",
    "SELECT e'\\'' , getenv('HOME') --'",
    "SELECT U&'x', getenv('HOME')",
    "SELECT \"getenv\"('HOME')",
    "SELECT \"GetEnv\"('HOME')",
    "SELECT system.main.getenv('HOME')",
    "SELECT 'HOME'.getenv()",
    "SELECT COLUMNS(lambda c: getenv(c) IS NOT NULL) FROM spending",
    "SELECT * REPLACE (getenv('HOME') AS total) FROM spending",
    "SELECT list_transform(['HOME'], lambda x: getenv(x))",
    "SELECT [getenv(x) FOR x IN ['HOME']]",
    "SELECT count(*) FROM spending GROUP BY GROUPING SETS ((getenv('HOME')))",
    "SELECT 1 QUALIFY row_number() OVER (PARTITION BY getenv('HOME')) = 1",
    "PIVOT spending ON country USING sum(total)",
    "PIVOT spending ON country IN ('de') USING max(getenv('HOME'))",
    "SELECT pg_get_viewdef(1)",
    "SELECT get_block_size('memory')",
    "FROM sql_auto_complete('SEL')",
    "FROM histogram_values('spending', 'total')",
]
SHADOWED = [  # a WITH somewhere defines the name, and where it stands it means DuckDB's own view
    "SELECT * FROM {own}, (WITH {own} AS (SELECT 1) SELECT 1)",
    "SELECT * FROM (WITH {own} AS (SELECT 1) FROM {own}), {own}",
    "WITH a AS (SELECT * FROM {own}), {own} AS (SELECT 1) SELECT * FROM a",
    "WITH {own} AS (SELECT * FROM {own}) SELECT * FROM {own}",
    "WITH RECURSIVE {own} AS (FROM {own} UNION ALL (SELECT * FROM {own} WHERE false)) SELECT * FROM {own}",
    "SELECT (WITH {own} AS (SELECT 1) SELECT 1), * FROM {own}",
    "WITH {own} AS (SELECT 1) SELECT * FROM main.{own}",
    "WITH a AS (SUMMARIZE {own}), {own} AS (SELECT 1) SELECT * FROM a",
    "(WITH {own} AS (SELECT 1) FROM {own}) UNION ALL FROM {own}",
]
NO_STATEMENT = [
    "",
    " ",
    ";",
    "-- only a comment",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW spending",
    "SELECT",
    "SELECT * FROM spending WHERE",
    "hello",
    "EXPLAIN",
    "EXPLAIN (FORMAT json) SELECT 1",
    "SELECT nothing FROM spending",
    "SELECT nothing(1)",
    "SELECT 'x'::INTEGER",
    "SELECT error('x')",
    "SELECT 1 AS a WHERE a.b.c = 1",
    "SELECT \x00",
    "SELECT '\ud800'",
    "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
    "SELECT " + "1 + " * 10_000 + "1",
    "SELECT " + "NOT " * 10_000 + "true",
    "SELECT * FROM " + "(SELECT * FROM " * 2_000 + "spending" + ")" * 2_000,
    "SELECT '" + "x" * 70_000 + "'",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "secret.csv").write_text("password\nhunter2\n")
    return folder


def refused(asker: Asker, text: str) -> StatesideError:
    with pytest.raises(SqlInvalid) as raised:
        asker.content(text, timeout_ms=5_000)
    return raised.value


@pytest.mark.parametrize("text", some([*WRITES, *REACHES_OUT, *LOOKS_AROUND], 5))
def test_a_statement_that_reaches_for_more_is_refused_and_learns_nothing(asker: Asker, folder: Path, text: str) -> None:
    error = refused(asker, text.format(folder=folder, secret=folder / "secret.csv"))
    assert "hunter2" not in str(error)
    for secret in (os.environ.get("HOME", "/root"), str(asker.layout.root), str(Path.cwd())):
        assert secret not in str(error)
    assert [path.name for path in folder.iterdir()] == ["secret.csv"]


@pytest.mark.parametrize("text", HIDDEN, ids=range(len(HIDDEN)))
def test_what_runs_is_what_was_checked(
    asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused(asker, text.replace("{folder}", str(tmp_path)))
    assert os.environ.get("HOME", "/root") not in str(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("own", ["duckdb_databases", "pg_settings", "sqlite_master", "nothing"])
@pytest.mark.parametrize("text", SHADOWED, ids=range(len(SHADOWED)))
def test_a_name_means_what_it_means_where_it_stands(asker: Asker, text: str, own: str) -> None:
    refused(asker, text.format(own=own))


_NOISE = (
    *("/*", "*/", "--", "\n", "\r", " ", "\t", "\u00a0", "\ufeff", "\x0b", ";"),
    *("$$", "$a$", "'", '"', "\\", "e'", "(", ")", ","),
    *("EXPLAIN", "ANALYZE", "explain select 1", "SELECT", "1", "x", "getenv('HOME')", "FROM range(3)", "UNION ALL"),
    *("COPY (SELECT 1) TO 'here.csv'", "PREPARE p AS", "CALL", "SET threads = 1", "WITH t AS (SELECT 1)", "FROM t"),
)  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    """One for all statements that are only looked through: opening one takes longer than a hundred of these."""
    opened = open_engine()
    yield opened
    opened.close()


@settings(max_examples=sized(25, 20_000), deadline=None)
@given(pieces=st.lists(st.sampled_from(_NOISE), min_size=1, max_size=12))
def test_of_any_noise_nothing_runs_but_what_was_looked_through(
    engine: duckdb.DuckDBPyConnection, pieces: list[str]
) -> None:
    """DuckDB's own tokens of the statement that runs: no comment hides anything, and no word in it is refused."""
    try:
        runs = checked(engine, "".join(pieces)).parsed
    except (SqlInvalid, duckdb.Error):
        return
    tokens = duckdb.tokenize(runs.query)
    assert duckdb.token_type.comment not in {kind for _, kind in tokens}
    ends = [*(place for place, _ in tokens[1:]), len(runs.query.encode())]
    words = {
        runs.query.encode()[place:end].strip().lower()
        for (place, kind), end in zip(tokens, ends, strict=True)
        if kind in (duckdb.token_type.identifier, duckdb.token_type.keyword)
    }
    assert not words & {b"getenv", b'"getenv"', b"copy", b"analyze", b"prepare", b"call", b"set"}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT 1 -- one\r, 2", [[1, 2]]),
        ("SELECT /* a /* b */ , 2 */ 1", [[1]]),
        ("/* /* */ SELECT 2 -- */ SELECT 3", [[3]]),
        ("SELECT $$ -- ' /* $$, 'it''s -- /* */'", [[" -- ' /* ", "it's -- /* */"]]),
        ("SELECT ';', \"a;b\" FROM (SELECT 1 AS \"a;b\");", [[";", 1]]),
        ("WITH spending AS (FROM spending WHERE total > 50), b AS (FROM spending) SELECT count(*) FROM b", [[2]]),
        ("SELECT (WITH spending AS (SELECT 1 AS n) SELECT n FROM spending), count(*) FROM spending", [[1, 3]]),
        ("WITH a AS (WITH b AS (SELECT 1 AS n) FROM b) SELECT a.n FROM a, (WITH a AS (SELECT 2) FROM a)", [[1]]),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM T WHERE n < 3) SELECT sum(n) FROM t", [[6]]),
        ("FROM (FROM spending__total) SELECT total", [[171]]),
    ],
)  # fmt: skip
def test_honest_statements_are_taken_as_they_are_meant(asker: Asker, text: str, rows: list[object]) -> None:
    assert asker.rows(text) == rows


def test_no_path_is_allowed_in_duckdb(engine: duckdb.DuckDBPyConnection) -> None:
    allowed = "SELECT current_setting('allowed_paths'), current_setting('allowed_directories')"
    assert engine.execute(allowed).fetchall() == [([], [])]


@pytest.mark.parametrize("text", [*some(REACHES_OUT, 5), "COPY (SELECT 1) TO ':memory:' (FORMAT csv)"])
def test_duckdb_itself_is_shut_off_even_if_a_statement_gets_through(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The second wall: what `statement` refuses is run here without being looked at."""
    monkeypatch.chdir(folder)
    engine = open_engine()
    try:
        found = engine.sql(text.format(folder=folder, secret=folder / "secret.csv"))
        assert found is None or "hunter2" not in str(found.fetchall())
    except (duckdb.Error, TypeError, ValueError) as error:
        assert "hunter2" not in str(error)
    finally:
        engine.close()
    assert [path.name for path in folder.iterdir()] == ["secret.csv"]


@pytest.mark.parametrize("text", NO_STATEMENT, ids=range(len(NO_STATEMENT)))
def test_what_is_no_statement_is_told_so(asker: Asker, text: str) -> None:
    refused(asker, text)


def test_after_all_of_them_the_rows_are_as_they_were(asker: Asker) -> None:
    assert asker.rows("SELECT sum(total), count(*) FROM spending") == [[171, 3]]


def test_a_statement_s_own_words_come_back_but_no_other_paths(asker: Asker) -> None:
    assert "/my/own/path" in str(refused(asker, "SELECT '/my/own/path'::INTEGER"))


def test_every_function_of_this_duckdb_was_looked_through() -> None:
    """When DuckDB has new ones: judge each of them (`functions`), then write them into `known_functions.txt`."""
    engine = open_engine()
    found = {row[0].lower() for row in engine.execute("SELECT function_name FROM duckdb_functions()").fetchall()}
    engine.close()
    assert {name for name in found if " " not in name} - known_functions() == set()
    assert found >= TABLE_FUNCTIONS
