"""Statements that reach for what is not theirs: files, network, configuration, the machine, other tables."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

from stateside.errors import SqlInvalid, StatesideError
from stateside.serving.sql.engine import open_engine
from stateside.serving.sql.functions import TABLE_FUNCTIONS
from tests.sizes import some

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


@pytest.mark.parametrize("text", some(REACHES_OUT, 5))
def test_duckdb_itself_is_shut_off_even_if_a_statement_gets_through(folder: Path, text: str) -> None:
    """The second wall: what `statement` refuses is run here without being looked at."""
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
    """When DuckDB has new ones: judge each of them (`functions`), then write them into the file."""
    looked_through = set((Path(__file__).parent / "functions.txt").read_text().split())
    engine = open_engine()
    found = {row[0] for row in engine.execute("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()}
    engine.close()
    assert {name for name in found if " " not in name} - looked_through == set()
    assert found >= TABLE_FUNCTIONS
