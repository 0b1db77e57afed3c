"""The ledger: the auditor's memory between audits, in a DuckDB file of its own.

DIR/audit/ledger.duckdb holds the sums of all events up to one position, and everything needed to continue from there:
the plans and assignments so far, the ids seen, the periods. The ledger is derived from the journal alone and may be
deleted at any time: the next audit then reads the journal from its start.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb

from stateside.billing.audit.money_macros import MACROS, TIERS_TYPE
from stateside.core.errors import OperatingError

FORMAT = 4  # of the tables; a ledger of another format is deleted and built again
MEMORY_MAX = "1GB"  # beyond that DuckDB works on disk
LOG_ROWS_MIN = 1_000_000  # minimum of unmerged rows in the log of sums

_TABLES = f"""
    -- How far the journal is folded, and which journal it is. One row.
    create table fold (
        format int, duckdb text, journal text, position bigint, events bigint, clocks bigint, time_us_max bigint,
        rechecked bigint, lateness_us bigint
    );

    -- What was read, a row for each chunk, to recognise a past that changed.
    create table chunks (start bigint, stop bigint, digest hugeint);

    -- Versions of plans that were accepted, with the price of each type of the bill.
    create table plans (
        plan text, version bigint, id text, effective_us bigint, "offset" bigint,
        currency text, minor_micros bigint, rounding text, kind text, time_zone text, anchor_day int
    );
    create table prices (plan_id text, type text, tiers {TIERS_TYPE});

    -- Assignments that were accepted; a customer's are numbered from 1.
    create table assignments (customer text, number bigint, effective_us bigint, "offset" bigint, plan text);

    create table periods (
        kind text, time_zone text, anchor_day int, label text, start_us bigint, end_us bigint
    );

    -- The ids of the events that count, where each stands, whose it is, and a hash of what it says.
    create table seen (id text, "offset" bigint, customer text, period_end_us bigint, content ubigint);

    -- What they add up to. A log of sums: an account may have several rows, which count together.
    create table sums (
        customer text, period_end_us bigint, type text, plan text, quantity hugeint, events hugeint
    );

    create table added_up (number bigint);  -- how many rows there were when each account had one

    create table duplicates (
        "offset" bigint, id text, first_offset bigint, says_the_same boolean,
        customer text, period_end_us bigint, type text, plan text, quantity bigint
    );
    create table bad ("offset" bigint, id text, entity text, type text, reason text);
"""

_VIEWS = """
    -- What the journal says of each account: customer, period, type on the bill, plan.
    create or replace temp view accounts as
        select customer, period_end_us, type, plan, sum(quantity)::hugeint as quantity, sum(events)::hugeint as events
        from sums group by all;
"""


class Ledger:
    """An open ledger, exclusive to one audit; OperatingError for a second one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger.duckdb"
        folder.mkdir(parents=True, exist_ok=True)
        self.sql = self._open()

    @property
    def position(self) -> int:
        """The offset up to which the journal is folded."""
        return int(self.one("select position from fold"))

    @property
    def events(self) -> int:
        """The number of folded events, on Kafka smaller than the number of offsets."""
        return int(self.one("select events from fold"))

    @property
    def journal(self) -> str | None:
        """The id of the folded journal; None before the first event."""
        found = self.one("select journal from fold")
        return None if found is None else str(found)

    def one(self, query: str, *parameters: Any) -> Any:
        """The first value of the first row."""
        return self.rows(query, *parameters)[0][0]

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """All rows, for queries with few."""
        return self.sql.execute(query, parameters).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all or nothing: a crash leaves the ledger at the position before."""
        self.sql.begin()
        try:
            yield
        except BaseException:
            self.sql.rollback()
            raise
        self.sql.commit()

    def begin_anew(self) -> None:
        """Delete the ledger and create an empty one."""
        self.close()
        self._path.unlink(missing_ok=True)
        self.sql = self._open()

    def add_up(self) -> None:
        """Merge the rows of each account, once the log of sums has doubled in size."""
        rows, accounts = self.one("select count(*) from sums"), self.one("select number from added_up")
        if rows > 2 * accounts + LOG_ROWS_MIN:
            self.sql.execute("create or replace table sums as select * from accounts order by customer, period_end_us")
            self.sql.execute("update added_up set number = (select count(*) from sums)")

    def close(self) -> None:
        self.sql.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _open(self) -> duckdb.DuckDBPyConnection:
        connection = self._connect()
        known = connection.execute("from duckdb_tables() where table_name = 'fold'").fetchall()
        if known and connection.execute("select format, duckdb from fold").fetchall() != [(FORMAT, _DUCKDB)]:
            connection.close()
            self._path.unlink()
            return self._open()
        if not known:
            connection.begin()
            connection.execute(_TABLES)
            connection.execute("insert into added_up values (0)")
            connection.execute("insert into fold values (?, ?, null, 0, 0, 0, null, 0, null)", [FORMAT, _DUCKDB])
            connection.commit()
        connection.execute(_VIEWS)
        connection.execute(MACROS)
        return connection

    def _connect(self) -> duckdb.DuckDBPyConnection:
        try:
            connection = duckdb.connect(str(self._path), config={"memory_limit": MEMORY_MAX})
        except duckdb.IOException as error:
            raise OperatingError(
                f"The auditor's ledger cannot be opened: {error}",
                where=str(self._path),
                next_step="If another audit runs here, wait for its end; else delete the file: it is made again",
            ) from error
        scratch = self._path.with_name("scratch")
        shutil.rmtree(scratch, ignore_errors=True)  # safe only now: the open file excludes any other audit
        connection.execute("set temp_directory = ?", [str(scratch)])
        connection.execute(
            "set preserve_insertion_order = false"
        )  # order costs memory, and no query here depends on it
        return connection


_DUCKDB = duckdb.__version__  # `hash`, used for digests of the past, may differ between versions
