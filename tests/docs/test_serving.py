"""What serving.md, changes.md, sql.md and access.md show is run; their limits are the code's."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stateside.cli import main
from stateside.core.layout import Layout
from stateside.serving import server
from stateside.serving.access import guard, hosts, limits, principal, tokens, verifier
from stateside.serving.access.position_codec import PLAIN
from stateside.serving.changes import feed, subscription
from stateside.serving.changes import feed as feed_module
from stateside.serving.changes.feed import Feeds
from stateside.serving.fast_path import KEPT_BYTES_MAX
from stateside.serving.rows import relation
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.sql import cache, execution, pool, process, sql_query
from stateside.serving.sql import pool as pool_module
from stateside.serving.web import connection, event_routes, route
from stateside.serving.web import event_routes as event_routes_module
from stateside.serving.web import request as request_module
from stateside.serving.web.request import Request
from stateside.serving.web.response import as_json

DOCS = Path(__file__).parents[2] / "docs"
SERVING, CHANGES, SQL, ACCESS = ((DOCS / f"{name}.md").read_text() for name in ("serving", "changes", "sql", "access"))


def block(page: str, name: str) -> list[str]:
    match = re.search(rf"<!-- test: {re.escape(name)} -->\n *```\w*\n(.*?)```", page, re.DOTALL)
    assert match, f"no block {name} in {page.splitlines()[0]}"
    return [line.strip() for line in match[1].strip().splitlines()]


def run(line: str) -> str:
    program, *arguments = shlex.split(line)
    assert program == "stateside"
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, (line, done.output)
    return done.stdout


def test_tokens_are_made_listed_and_revoked_and_keys_are_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    *_, listed, _ = (run(line) for line in block(ACCESS, "tokens"))
    assert [line.split("\t")[:3] for line in listed.splitlines()] == [
        ["finance", "operator", "everything"],
        ["dashboard", "read,sql", "views bill country=AT"],
        ["emma's page", "read", "customer=emma"],
        ["emma's phone", "append", "customer=emma entities emma types call,message"],
    ]
    for line in (*block(ACCESS, "rotate"), *block(ACCESS, "reissue")):
        run(line)
    old, new = (line.split("\t") for line in run(block(ACCESS, "keys")[0]).splitlines())
    assert (old[2:], new[2:]) == (["3 tokens"], ["1 tokens", "signs"])
    run(f"stateside token retire {old[0]} --dir data")
    assert [line.split("\t")[0] for line in run("stateside token list --dir data").splitlines()] == ["finance"]


def test_the_table_of_limits_has_what_the_code_has() -> None:
    assert (limits.RATE_PER_S, limits.BURST_S, limits.RUNNING_MAX, limits.BUCKETS_MAX) == (5_000, 2, 2_000, 10_000)
    assert (route.BODY_BYTES_MAX, request_module.BODY_S_MAX, request_module.PATH_CHARS_MAX) == (1 << 20, 30, 4_096)
    assert (verifier.TOKEN_CHARS_MAX, verifier.CACHED_MAX) == (8_192, 4_096)
    assert (tokens.LIFE_S_MAX, tokens.SCOPE_ENTRIES_MAX, tokens.SKEW_S) == (400 * 86_400, 64, 5)
    assert (connection.HEAD_S_MAX, connection.HANDSHAKE_S_MAX, connection.CONNECTIONS_MAX) == (10, 10, 8_192)
    assert connection.HEAD_BYTES_MAX == 64 << 10
    assert (guard.BYTES_MAX, guard.OLDER_KEPT, guard.LINES_PER_S) == (4 << 20, 4, 200)
    for said in (
        f"| {limits.RATE_PER_S:,.0f}, twice as many in a burst",
        f"`--running` | {limits.RUNNING_MAX:,} |",
        f"| {route.BODY_BYTES_MAX >> 20} MiB, or the route's own limit | 413 |",
        f"| {request_module.BODY_S_MAX:g} s | 408 |",
        f"| {request_module.PATH_CHARS_MAX:,} characters | 400 |",
        f"{verifier.TOKEN_CHARS_MAX:,} characters; valid for at most {tokens.LIFE_S_MAX // 86_400} days",
        f"; {tokens.SCOPE_ENTRIES_MAX} each of views, columns, entities and types",
        f"| {tokens.SKEW_S:g} s | 401 |",
        f"| {connection.HEAD_S_MAX:g} s each",
        f"| {connection.HEAD_BYTES_MAX >> 10} KiB | 431",
        f"| {connection.CONNECTIONS_MAX:,}, or the worker's limit of open files",
        f"{limits.BUCKETS_MAX:,} addresses and principals, and {verifier.CACHED_MAX:,} verified tokens",
        f"close to {guard.BYTES_MAX >> 20} MiB at most",
        f"at most {guard.LINES_PER_S:g} lines a second",
    ):
        assert said in ACCESS, said
    assert all(f"{status}" in ACCESS for status in guard.STATUSES)
    assert all(f"| `{role}`" in ACCESS for role in principal.ROLES)


def test_the_headers_are_those_that_every_answer_has() -> None:
    shown = ACCESS.lower().replace("\n", " ")
    for name, value in hosts.security_headers("application/json"):
        assert f"`{name}: {value}`".lower() in shown


def test_the_limits_of_sql_are_those_of_the_code() -> None:
    assert (execution.THREADS, execution.MEMORY_BYTES_MAX) == (2, 512 << 20)
    assert pool_module.Size(4, 4 << 30, cache.KEPT_BYTES_MAX) == pool.RESERVED
    assert pool_module.Size(2, 2 << 30, 512 << 20) == pool.SHARED
    assert (pool.SHARED_PROCESSES, pool.WAIT_S_MAX, pool.WAITING_MAX, pool.IDLE_S_MAX) == (3, 5, 16, 300)
    assert (sql_query.TIMEOUT_MS_DEFAULT, sql_query.TIMEOUT_MS_MAX, sql_query.PARAMETERS_MAX) == (
        30_000,
        300_000,
        1_000,
    )
    assert (sql_query.JSON_ROWS_DEFAULT, sql_query.JSON_ROWS_MAX, sql_query.JSON_BYTES_MAX) == (
        10_000,
        100_000,
        32 << 20,
    )
    assert (sql_query.STREAM_ROWS_MAX, sql_query.STREAM_BYTES_MAX) == (10_000_000, 2 << 30)
    assert (cache.KEPT_BYTES_MAX, cache.KEPT_RELATION_BYTES_MAX, cache.ROWS_MAX) == (1 << 30, 768 << 20, 50_000)
    assert sql_query.STATEMENT_CHARS_MAX == 65_536
    assert cache.RelationCache(pool.SHARED.kept_bytes_max).relation_bytes_max == 384 << 20
    assert (process.FILE_BYTES_MAX, pool_module.GRACE_S) == (1 << 20, 2)
    for said in (
        f"up to {sql_query.STATEMENT_CHARS_MAX:,} characters",
        f"up to {sql_query.PARAMETERS_MAX:,} |",
        f"| {pool.SHARED.statements_max}; of an operator {pool.RESERVED.statements_max} | waits",
        f"waits {pool.WAIT_S_MAX:g} s, then 429",
        f"| {pool.WAITING_MAX} | 429",
        f"| {pool.SHARED_PROCESSES}, and an operator |",
        f"| {sql_query.TIMEOUT_MS_DEFAULT:,} ms, up to {sql_query.TIMEOUT_MS_MAX:,}:",
        f"| {execution.MEMORY_BYTES_MAX >> 20} MiB; never spilled to disk |",
        f"| {execution.THREADS} | |",
        f"| {sql_query.JSON_ROWS_DEFAULT:,} rows, up to {sql_query.JSON_ROWS_MAX:,} with `rows_max`; 32 MiB |",
        f"| {sql_query.STREAM_ROWS_MAX:,} rows; {sql_query.STREAM_BYTES_MAX >> 30} GiB |",
        f"{cache.ROWS_MAX:,} at a time",
        f"no file larger than {process.FILE_BYTES_MAX >> 20} MiB",
        f"idle for {pool.IDLE_S_MAX / 60:g} minutes",
    ):
        assert said in " ".join(SQL.split()), said


def test_the_request_that_appends_is_answered_with_receipts(tmp_path: Path) -> None:
    method, address, document = block(SERVING, "events")[0].split(" ", 2)
    layout = Layout(tmp_path)
    (route,) = event_routes.event_routes(layout)
    assert (method, address) == (route.method, route.pattern)
    views = ViewReaders(layout)
    request = Request((), (), {}, views, Feeds(views), body=document.encode())
    answer: Any = asyncio.run(route.handler(request))  # type: ignore[arg-type]
    assert json.loads(as_json(answer.document, PLAIN)) == {"receipt": "0:1", "receipts": ["0:1"]}


def test_the_limits_of_appending_and_stopping_are_those_of_the_code() -> None:
    assert (event_routes.EVENTS_MAX, event_routes.BODY_BYTES_MAX) == (1_000, 4 << 20)
    assert (event_routes_module.WAITING_EVENTS_MAX, server.WORKER_STOP_S) == (20_000, 5)
    for said in (
        f"| events of a request | {event_routes.EVENTS_MAX:,} |",
        f"| body of a request | {event_routes.BODY_BYTES_MAX >> 20} MiB |",
        f"| waiting events of a worker | {event_routes_module.WAITING_EVENTS_MAX:,} |",
        f"exits after {server.WORKER_STOP_S:g} s at most",
    ):
        assert said in " ".join(SERVING.split()), said


def test_the_limits_of_watching_are_those_of_the_code() -> None:
    assert (feed_module.QUEUE_EVENTS_MAX, feed_module.QUEUE_BYTES_MAX) == (1_000, 4 << 20)
    assert (2 * connection.UNSENT_BYTES_MAX, connection.STALLED_S) == (256 << 10, 30)
    assert (subscription.PAGE_ROWS_MAX, subscription.PAGE_BYTES) == (1_000, 256 << 10)
    assert (subscription.STEP_BATCHES_MAX, subscription.STEP_ROWS_MAX) == (64, 1_000)
    assert (feed.FEED_ROWS_MAX, feed.KEEP_ALIVE_S, feed.POLL_S) == (10_000, 15, 0.01)
    assert relation.ROWS_MAX == 10_000
    for said in (
        f"| {feed_module.QUEUE_EVENTS_MAX:,}, or {feed_module.QUEUE_BYTES_MAX >> 20} MiB |",
        f"| {2 * connection.UNSENT_BYTES_MAX >> 10} KiB, and one part |",
        f"| after {connection.STALLED_S:g} s |",
        f"| {subscription.PAGE_ROWS_MAX:,} rows, or {subscription.PAGE_BYTES >> 10} KiB |",
        f"more than {subscription.STEP_BATCHES_MAX} batches or {subscription.STEP_ROWS_MAX:,} changes",
        f"| changes of a batch held for all subscriptions | {feed.FEED_ROWS_MAX:,};",
        f"| keep-alive | {feed.KEEP_ALIVE_S:g} s |",
        f"every {feed.POLL_S * 1_000:g} ms",
        f"| rows of a single JSON answer | {relation.ROWS_MAX:,} |",
    ):
        assert said in " ".join(CHANGES.split()), said


def test_the_bound_of_rows_in_memory_is_that_of_the_code() -> None:
    assert KEPT_BYTES_MAX == 64 << 20
    assert f"{KEPT_BYTES_MAX >> 20} MiB for each view and worker" in " ".join(SERVING.split())
