"""Shares: the replicas together have every key exactly once, and all rows of a customer are in one of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import ReplicaInvalid, SettingInvalid
from stateside.core.layout import Layout, ViewLayout
from stateside.replica.keys import KeyCodec
from stateside.replica.replica_reader import ReplicaReader
from stateside.replica.rollup_tables import RollupRows
from stateside.replica.shard import Share
from stateside.replica.tail import Tail

from .spark_job import Changes, Job, Rows, answered, catalogue

COUNT = 4


@given(st.binary(), st.integers(1, 200))
def test_every_key_is_in_exactly_one_share(leading: bytes, count: int) -> None:
    assert sum(Share(index, count).has(leading) for index in range(1, count + 1)) == 1


@given(st.binary(), st.integers(1, 50))
def test_twice_as_many_shares_are_the_halves_of_these(leading: bytes, count: int) -> None:
    [index] = [index for index in range(1, count + 1) if Share(index, count).has(leading)]
    assert any(Share(half, 2 * count).has(leading) for half in (2 * index - 1, 2 * index))


def test_the_hash_is_what_clients_elsewhere_reckon_with() -> None:
    """As `printf '\\x01emma\\x00' | b2sum -l 64` has it: the first two bits are the share of four."""
    codec = KeyCodec(["string"])
    for name, share in {"emma": 3, "oliver": 4, "mia": 2, "noah": 3, "": 1}.items():
        assert [index for index in range(1, 5) if Share(index, 4).has(codec.encode([name]))] == [share]


def test_shares_are_about_equal() -> None:
    codec = KeyCodec(["string"])
    shares = Counter(
        next(index for index in range(1, 5) if Share(index, 4).has(codec.encode([f"customer {number}"])))
        for number in range(10_000)
    )
    assert all(2_300 < count < 2_700 for count in shares.values())


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1/99999", "¹/4", " 1/4"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(SettingInvalid, match="is no share"):
        Share.parse(text)


def test_a_share_is_read_as_it_is_written() -> None:
    assert Share.parse(str(Share(3, 4))) == Share(3, 4)


@given(st.lists(st.tuples(st.text(), st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_the_leading_column_alone_is_what_a_share_goes_by(keys: list[tuple[str, int]]) -> None:
    codec = KeyCodec(["string", "long"])
    for text, number in keys:
        assert codec.leading(codec.encode([text, number])) == codec.encode([text])
    assert KeyCodec([]).leading(b"") == b""


# Replicas


def changes(number: int) -> Changes:
    return {
        (f"customer {row % 20}", f"country {row % 7}"): None if (row + number) % 5 == 0 else (number, row)
        for row in range(number % 3, 60, 2)
    }


def shares(root: Path, job: Job) -> list[ViewLayout]:
    """A view's layout for each replica: the same checkpoint and catalogue, each with a folder of its own."""
    views = [Layout(root / str(index)).view("spending") for index in range(1, COUNT + 1)]
    for view in views:
        view.root.mkdir(parents=True, exist_ok=True)
        if not view.checkpoint.exists():
            view.checkpoint.symlink_to(job.view.checkpoint)
            view.catalogue.symlink_to(job.view.catalogue)
    return views


def together(parts: list[Rows]) -> Rows:
    whole: Rows = {}
    for part in parts:
        assert not whole.keys() & part.keys(), "a key is in two shares"
        assert not {key[0] for key in whole} & {key[0] for key in part}, "a customer's rows are in two shares"
        whole |= part
    return whole


@pytest.mark.parametrize("loaded", [False, True], ids=["followed", "loaded"])
@pytest.mark.parametrize("ids", [True, False], ids=["ids", "default store"])
def test_the_replicas_together_have_every_row_once_and_a_customer_in_one_place(
    tmp_path: Path, ids: bool, loaded: bool
) -> None:
    job = Job(Layout(tmp_path / "job").view("spending"), ids=ids, rollups=[["country"], []])
    for number in range(10):
        job.run(changes(number))
    if loaded:
        job.snapshot(8)
        job.purge(7)
    parts = []
    for index, view in enumerate(shares(tmp_path, job), 1):
        tail = Tail(view, share=Share(index, COUNT))
        tail.step()
        tail.close()
        batch, rows, _ = answered(view)
        assert batch == 9
        assert (view.replica / "current").exists() == loaded
        assert totals(view) == sum(total for _, total in rows.values()), "a share's rollups are those of its share"
        parts.append(rows)
    assert together(parts) == job.rows
    assert sum(map(bool, parts)) > 1


def totals(view: ViewLayout) -> int:
    reader = ReplicaReader(view.replica)
    with reader.snapshot() as snapshot:
        [(_, row)] = snapshot.rollup(1, b"")
        total = RollupRows(catalogue().columns).values(row)[1]
    reader.close()
    assert isinstance(total, int)
    return total


def test_a_replica_knows_its_share_and_is_refused_for_another_one(tmp_path: Path) -> None:
    job = Job(Layout(tmp_path).view("spending"))
    job.run(changes(1))
    Tail(job.view, share=Share(2, 4)).close()
    tail = Tail(job.view, share=Share(1, 4))  # it had no rows yet
    tail.step()
    tail.close()
    for other in (Share(2, 4), Share(1, 8), None):
        with pytest.raises(ReplicaInvalid, match=r"holds share 1/4 of the keys, and .* was asked for"):
            Tail(job.view, share=other)
    reader = ReplicaReader(job.view.replica)
    with reader.snapshot() as snapshot:
        assert snapshot.share() == Share(1, 4)
    reader.close()
    Tail(job.view, share=Share(1, 4)).close()


def test_a_replica_with_all_keys_does_not_become_a_share(tmp_path: Path) -> None:
    job = Job(Layout(tmp_path).view("spending"))
    job.run(changes(1))
    tail = Tail(job.view)
    tail.step()
    tail.close()
    with pytest.raises(ReplicaInvalid, match="holds all keys, and share 1/4 of the keys was asked for"):
        Tail(job.view, share=Share(1, 4))
