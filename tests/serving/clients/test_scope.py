"""A customer's token over servers with shares: own rows, once, wherever they are asked for, and nobody else's place."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stateside.core.errors import AccessDenied, TokenInvalid
from stateside.core.layout import Layout
from stateside.serving.access.tokens import Issuer
from stateside.serving.clients import Client
from tests.serving.cluster import COUNTRIES, Cluster

from .asked import KINDS

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """Two shares that need tokens, and those of some customers."""
    made = Cluster(tmp_path_factory.mktemp("guarded"), customers=6)
    try:
        made.start_all(one="1/2", two="2/2")
        folders = [Layout(made.folder / f"replicas-{name}") for name in made.servers]
        issuer = Issuer(folders[0])
        tokens = {f"c00{number}": issuer.create_customer(f"c00{number}", f"c00{number}") for number in range(6)}
        tokens["sql"] = issuer.create("analyst", ("read", "sql"), where={"customer": "c003"})[0]
        for path in (folders[0].keys, folders[0].issued):
            shutil.copy(path, folders[1].root / Path(path).name)
        yield made, tokens
    finally:
        made.close()


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_customer_gets_their_own_rows_once_from_any_share(guarded: tuple[Cluster, dict[str, str]], kind: str) -> None:
    (cluster, tokens), other = guarded, "c005"
    for customer in ("c000", "c001", "c002", "c003"):
        with KINDS[kind](cluster.servers["one"][1], token=tokens[customer]) as client:
            own = [(customer, country) for country in COUNTRIES]
            for rows in (
                client.rows("spending", customer).rows,
                client.rows("spending").rows,
                [row for page in client.scan("spending", page_rows=2) for row in page.rows],
                [row for page in client.scan("spending", where=["orders>0"]) for row in page.rows],
                client.lookup("spending", own).rows,
            ):
                assert [(row["customer"], row["country"]) for row in rows] == own
            (total,) = client.rollup("spending", ["customer"]).rows
            assert total["customer"] == customer
            assert client.locate("spending", customer).servers
            asks: list[Callable[[], object]] = [
                lambda: client.rows("spending", other),
                lambda: client.lookup("spending", [(other, "de")]),
                lambda: client.scan("spending", where=[f"customer={other}"]),
                lambda: client.locate("spending", other),
                lambda: client.rollup("spending", ["country"]),
            ]
            for refused in asks:
                with pytest.raises(AccessDenied):
                    refused()


def test_a_statement_of_a_scope_is_asked_where_its_rows_are(guarded: tuple[Cluster, dict[str, str]]) -> None:
    cluster, tokens = guarded
    for name in ("one", "two"):
        with Client(cluster.servers[name][1], token=tokens["sql"]) as client:
            assert [row["customer"] for row in client.sql("SELECT * FROM spending").rows] == ["c003"] * 3


def test_without_a_token_nothing_is_told_and_nothing_is_tried_again(guarded: tuple[Cluster, dict[str, str]]) -> None:
    with Client(guarded[0].servers["one"][1]) as client:
        for refused in (client.views, client.servers, lambda: client.rows("spending", "c001")):
            with pytest.raises(TokenInvalid):
                refused()
