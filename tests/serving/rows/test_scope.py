"""The scope: nobody gets a row of another's, by whichever way it is asked for."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest

from stateside.core.errors import AccessDenied, CursorInvalid
from stateside.core.positions import Position
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.access.principal import Principal
from stateside.serving.rows import row_query
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.relation import Relation, Scope
from stateside.serving.rows.row_query import lookup
from stateside.serving.rows.view_reader import ViewReader
from tests.replica.spark_job import Changes

from .shop import Asked, Shop, shown

ROWS: Changes = {("ben", "de"): (1, 7), ("ben", "fr"): (3, 30), ("emma", "de"): (2, 104), ("emma", "fr"): (1, 5)}
EMMA, GERMANY, RICH = {"customer": "emma"}, {"country": "de"}, {"total": "104"}
OPAQUE = PositionCodec.of([b"x" * 32], opaque=True)
SCOPES = {"the first part": EMMA, "another part": GERMANY, "no part of the key": RICH, "both": {**EMMA, **GERMANY}}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    made = Shop(tmp_path_factory.mktemp("shop"))
    made.batch(ROWS)
    return made


@pytest.fixture
def reader(shop: Shop) -> Iterator[ViewReader]:
    with shop.reader() as made:
        yield made


def own(where: dict[str, str]) -> list[dict[str, Any]]:
    return [row for row in shown(ROWS) if all(str(row[name]) == text for name, text in where.items())]  # type: ignore[arg-type]


@pytest.mark.parametrize("where", SCOPES.values(), ids=SCOPES)
def test_a_scan_has_the_holder_s_own_rows_and_no_others(shop: Shop, where: dict[str, str]) -> None:
    for asked in (Asked(), Asked(limit=1), Asked(order="-total", limit=1), Asked(where=("orders>0",), limit=1)):
        found = sorted(shop.rows(asked, where=where), key=lambda row: (row["customer"], row["country"]))
        assert found == own(where)


def test_another_s_key_is_refused_and_not_answered_with_no_rows(shop: Shop) -> None:
    for asked in (Asked(parts=("ben",)), Asked(parts=("ben", "de")), Asked(parts=("nobody",))):
        with pytest.raises(AccessDenied, match="another 'customer' than its own"):
            shop.page(asked, where=EMMA)
    with pytest.raises(AccessDenied):
        shop.page(Asked(where=("customer=ben",)), where=EMMA)
    with pytest.raises(AccessDenied):
        shop.page(Asked(parts=("emma", "fr")), where=GERMANY)


def test_a_lookup_with_another_s_key_among_one_s_own_is_refused(reader: ViewReader) -> None:
    relation = Relation(reader, scope=Scope.of(reader.shape, EMMA))
    with pytest.raises(AccessDenied):
        asyncio.run(lookup(relation, [["emma", "de"], ["ben", "de"]], Floor()))


def test_a_lookup_has_no_row_whose_other_columns_are_another_s(reader: ViewReader) -> None:
    relation = Relation(reader, scope=Scope.of(reader.shape, RICH))
    answer = asyncio.run(lookup(relation, [["emma", "de"], ["ben", "de"]], Floor()))
    assert [row and row["total"] for row in answer.rows] == [104, None]


def test_a_cursor_of_another_holder_gives_no_more_than_one_s_own_rows(shop: Shop) -> None:
    asked = Asked(limit=1)
    cursor = shop.page(asked).cursor  # of everything, behind ben
    assert shop.page(asked, cursor, where=EMMA).rows == own(EMMA)[:1]
    behind_emma = shop.page(asked, where=EMMA).cursor
    assert shop.page(asked, behind_emma, where={"customer": "ben"}).rows == []
    ordered = Asked(order="total", limit=1)
    with pytest.raises(Exception, match="cursor"):
        shop.page(ordered, shop.page(ordered).cursor, where={"customer": "ben"})


@pytest.mark.parametrize("where", SCOPES.values(), ids=SCOPES)
def test_a_cursor_of_a_scoped_token_names_no_key_of_another_s(
    shop: Shop, where: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may end at any row that it looked at: also at one that is not shown."""
    monkeypatch.setattr(row_query, "ROWS_LOOKED_AT_MAX", 1)
    page = shop.page(Asked(), where=where, positions=OPAQUE)
    rows = page.rows
    while page.cursor is not None:
        content = base64.urlsafe_b64decode(f"{page.cursor.removeprefix('~')}===")
        assert not any(name in content for each in (b"ben", b"emma") for name in (each, each.hex().encode()))
        page = shop.page(Asked(), page.cursor, where=where, positions=OPAQUE)
        rows += page.rows
    assert rows == own(where)


def test_a_scoped_token_goes_on_by_its_own_cursors_alone(shop: Shop) -> None:
    asked = Asked(limit=1)
    plain, shown = shop.page(asked).cursor, shop.page(asked, positions=OPAQUE).cursor
    position = str(OPAQUE.encode(Position.of({"0": 7})))
    another = PositionCodec.of([b"y" * 32], opaque=True)
    given = [(plain, OPAQUE), (shown, another), (shown, PLAIN), (position, OPAQUE), ("~", OPAQUE), ("é", OPAQUE)]
    for cursor, positions in given:
        with pytest.raises(CursorInvalid):
            shop.page(asked, cursor, positions=positions)


def test_a_rollup_is_refused_unless_its_columns_tell_whose_rows_it_has(reader: ViewReader) -> None:
    emma = Principal("emma", frozenset({"read"}), where=EMMA)

    def rollup(columns: list[str], *parts: str) -> list[dict[str, Any]]:
        return asyncio.run(Relation.of(reader, emma, columns).rollup(parts, Floor())).rows

    assert rollup(["customer"]) == rollup(["customer"], "emma") == [{"customer": "emma", "orders": 3, "total": 109}]
    for columns, parts in ((["country"], ()), ([], ()), (["customer"], ("ben",))):
        with pytest.raises(AccessDenied):
            rollup(columns, *parts)


def test_a_value_that_the_column_cannot_have_reaches_nothing(reader: ViewReader) -> None:
    with pytest.raises(AccessDenied, match="cannot have its value in this view"):
        Scope.of(reader.shape, {"total": "emma"})
