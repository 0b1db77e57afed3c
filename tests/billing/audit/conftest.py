"""Right books: written and audited once, copied for each test that changes them."""

import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from stateside.billing.audit.money_macros import MACROS
from stateside.core.layout import Layout
from tests.billing.audit.books import Books, right_books


@pytest.fixture(scope="session")
def written_books(tmp_path_factory: pytest.TempPathFactory) -> Books:
    """Right books with their ledger, which no test changes."""
    books = right_books(tmp_path_factory.mktemp("books"))
    assert books.audit().differences() == []
    return books


@pytest.fixture
def books(written_books: Books, tmp_path: Path) -> Books:
    """A copy of them: what is appended is folded on top of what the ledger has."""
    shutil.copytree(written_books.layout.root, tmp_path / "books")
    names = ("documents", "letters", "rows", "rollups", "stored")
    copied = {name: deepcopy(getattr(written_books, name)) for name in names}
    return replace(written_books, layout=Layout(tmp_path / "books"), **copied)


@pytest.fixture(scope="session")
def sql() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that knows the auditor's macros."""
    with duckdb.connect() as connection:
        connection.execute(MACROS)
        yield connection
