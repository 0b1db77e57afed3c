"""Requests to several shards: the servers of a view's keys, and answers combined at one batch.

Combined rows are in the order of a single server. The rows of a rollup are added up in *tallies*, the whole numbers
from which sums, counts and averages are computed (see `views.aggregates`), and finished here as on a server: the result
equals a single server's, to the last unit. So every rollup can be combined.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, total_ordering
from operator import add
from typing import Any, TypeVar

from stateside.core.errors import (
    HistoryGone,
    Misdirected,
    NotFreshEnough,
    OperatingError,
    RequestInvalid,
    StatesideError,
)
from stateside.core.extras import explained
from stateside.replica.keys import KeyCodec
from stateside.serving.clients.answers import Row, Stamped
from stateside.serving.clients.core import Core, Whom
from stateside.serving.clients.requests import ClientFloor
from stateside.serving.clients.steps import Ask, Steps, together
from stateside.serving.rows.values import parse, renderer
from stateside.spark_state.types import SparkType, Struct, parse_type
from stateside.spark_state.unsafe_row import Value

R = TypeVar("R")
T = TypeVar("T", bound=Stamped)


@dataclass(frozen=True, slots=True)
class Shard:
    """The servers with a part of a view's keys, and the shard, if one of several."""

    whom: Whom
    share: str | None = None


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """A request to one shard, as a function of the floor; `share` is the expected shard of the answer."""

    whom: Whom
    ask: Callable[[ClientFloor], Ask]
    share: str | None = None


class SharesChanged(OperatingError):
    """The number of shards changed during a request to all shards: the request must be restarted."""

    @classmethod
    def of(cls, view: str) -> SharesChanged:
        return cls(f"The keys of the view {view!r} were redistributed meanwhile", next_step="Ask again")


class Shards:
    """The shards of views, as known to one core."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def anew(self, course: Callable[[], Steps[R]], when: type[StatesideError], deadline_s: float) -> Steps[R]:
        """Look the servers up and run a course of steps; restart the course on an error of type `when`."""
        rounds = 0
        yield from self.core.look(deadline_s)
        while True:
            rounds += 1
            try:
                return (yield from course())
            except when as error:
                yield from self.core.pause(rounds, deadline_s, error)

    def shares(self, view: str) -> list[Shard]:
        """The shards of a view; a single one if a server has all keys, or if no server is known."""
        locations = self.core.locations

        def copies(index: int, now_s: float) -> Sequence[str]:
            found = locations.shares(view, now_s)
            if found is not None and len(found) != count:
                raise SharesChanged.of(view)
            return () if found is None else found[index][1]

        nothing: list[str] = []
        known = locations.shares(view, self.core.clock()) or [(None, nothing)]
        count, nobody = len(known), partial(locations.unfound, view)
        return [
            Shard(Whom(partial(copies, index), nobody, follow=count == 1), share)
            for index, (share, _) in enumerate(known)
        ]

    def asked_of(self, places: Sequence[Shard], ask: Callable[[ClientFloor], Ask]) -> list[ShardRequest]:
        """The same request to several shards."""
        return [ShardRequest(place.whom, ask, place.share) for place in places]

    def named_by(self, error: Misdirected) -> Whom:
        """The servers named by a misdirected reply."""
        urls = self.core.locations.named_by(error)
        return Whom(lambda now_s: urls)

    def types(self, view: str) -> Mapping[str, str]:
        """The known types of a view's columns."""
        held = self.core.locations.held(view)
        return {} if held is None else dict(held.columns)

    def whom(self, view: str, parts: Sequence[str]) -> Whom:
        """The servers with the keys of this prefix."""
        locations = self.core.locations
        return Whom(partial(locations.of_key, view, parts), partial(locations.unfound, view))

    def one_place(self, view: str, parts: Sequence[str]) -> Whom:
        """The servers with all keys of this prefix; RequestInvalid if several shards have them."""
        places = self.of(view, parts)
        if len(places) > 1:
            raise RequestInvalid(
                f"Each server has a share of the view {view!r}, and this is asked of several shares together",
                next_step="Give the first part of a key, or start a server without --share",
            )
        return places[0].whom

    def with_all_keys(self) -> Whom:
        """The servers with all keys of all views in the token's scope; any server if none is known."""
        locations = self.core.locations
        return Whom(lambda now_s: locations.with_all_keys(now_s) or locations.anybody(now_s), follow=False)

    def of(self, view: str, parts: Sequence[str]) -> list[Shard]:
        """The shards to ask for a key prefix: all, if the prefix does not determine one."""
        scattered = self.core.locations.scattered(view, parts)
        return self.shares(view) if scattered else [Shard(self.whom(view, parts))]

    def key(self, view: str) -> Sequence[tuple[str, str]]:
        """The known columns of a view's key, with their types."""
        held = self.core.locations.held(view)
        return () if held is None else held.key

    def at_one_batch(
        self,
        asked: Sequence[ShardRequest],
        make: Callable[[Mapping[str, Any]], T],
        floor: ClientFloor,
        deadline_s: float,
    ) -> Steps[list[T]]:
        """The answers of several shards, of one batch where possible: shards ahead are read as of the lowest batch.

        If their histories do not reach back or do not match, the answers stay as they are, with their different stamps.
        """
        answers = yield from together([self._read(each, make, floor, deadline_s) for each in asked])
        lowest = min(answer.stamp.batch for answer in answers)
        ahead = [index for index, answer in enumerate(answers) if answer.stamp.batch > lowest]
        if not ahead:
            return answers
        try:
            lower = floor.at(lowest)
            back = yield from together([self._read(asked[index], make, lower, deadline_s) for index in ahead])
        except (HistoryGone, NotFreshEnough):
            return answers
        redone = dict(zip(ahead, back, strict=True))
        return [redone.get(index, answer) for index, answer in enumerate(answers)]

    def _read(
        self, asked: ShardRequest, make: Callable[[Mapping[str, Any]], T], floor: ClientFloor, deadline_s: float
    ) -> Steps[T]:
        answer = yield from self.core.read(asked.ask(floor), make, asked.whom, deadline_s)
        if asked.share is not None and answer.stamp.share != asked.share:
            self.core.locations.forget()
            raise SharesChanged.of(answer.stamp.view)
        return answer


Columns = Sequence[tuple[str, str]]
Rank = Callable[[Row], Any]


def by_key(key: Columns) -> Rank:
    """The sort key for the order of keys."""
    codec, types = KeyCodec([type_ for _, type_ in key]), [(name, parse_type(type_)) for name, type_ in key]
    return lambda row: codec.encode([value_of(name, type_, row[name]) for name, type_ in types])


def by_column(order: str, columns: Columns, key: Columns) -> Rank:
    """The sort key for an order like `total` or, descending, `-total`; ties by key."""
    name, descending = order.removeprefix("-"), order.startswith("-")
    path, type_ = _found(name, dict(columns))
    within = by_key(key)

    def rank(row: Row) -> tuple[Any, bytes]:
        shown: Any = row
        for part in path:
            shown = None if shown is None else shown[part]
        ranked = _rank(value_of(name, type_, shown))
        return (_Descending(ranked) if descending else ranked), within(row)

    return rank


def value_of(name: str, type_: SparkType, shown: Any) -> Value:
    """The value of a shown one."""
    if shown is None:
        return None
    if isinstance(type_, Struct):
        return tuple(value_of(name, part, shown[field]) for field, part in zip(type_.names, type_.types, strict=True))
    if isinstance(shown, dict):  # a session window, identified by its start
        shown = shown["start"]
    return parse(name, type_, ("true" if shown else "false") if isinstance(shown, bool) else str(shown))


def added_up(documents: Iterable[Mapping[str, Any]], columns: Sequence[str], key: Columns) -> list[Row]:
    """The rows of a rollup by these columns, summed from the shards' rows with tallies.

    ValueOverflow if a sum exceeds its type, as on a server.
    """
    sums: dict[str, list[int]] = {}
    made_of: Mapping[str, Any] = {}
    for made_of in documents:
        for row in made_of["rows"]:
            coarser = json.dumps([row[name] for name in columns])
            numbers = [int(number) for number in row["tallies"]]
            sums[coarser] = list(map(add, sums[coarser], numbers)) if coarser in sums else numbers
    finish = _finisher(made_of)
    rows = [dict(zip(columns, json.loads(coarser), strict=True)) | finish(sums[coarser]) for coarser in sums]
    types = dict(key)
    return sorted(rows, key=by_key([(name, types[name]) for name in columns])) if columns else rows


def _finisher(made_of: Mapping[str, Any]) -> Callable[[Sequence[int]], Row]:
    """The conversion of tallies to shown values, by the documents' column definitions."""
    with explained():
        from stateside.replica.rollup_tables import RollupRows, pack
    from stateside.views.catalogue import Computed, ViewColumn

    columns = [ViewColumn.parse(column) for column in made_of["columns"]]
    layout = RollupRows(columns, [Computed(c["name"], c["of"], tuple(c["by"])) for c in made_of["computed"]])
    render = [(name, renderer(parse_type(type_))) for name, type_ in layout.columns]

    def finish(numbers: Sequence[int]) -> Row:
        return {name: show(value) for (name, show), value in zip(render, layout.values(pack(numbers)), strict=True)}

    return finish


def _found(name: str, types: Mapping[str, str]) -> tuple[list[str], SparkType]:
    """The path in a row, and the type, of a column or of a field inside a column."""
    for column, type_ in types.items():
        if name == column or name.startswith(f"{column}."):
            path, found = [column], parse_type(type_)
            for field in name.removeprefix(column).split(".")[1:]:
                if not isinstance(found, Struct) or field not in found.names:
                    break
                path, found = [*path, field], found.types[found.names.index(field)]
            else:
                return path, found
    raise RequestInvalid(f"There is no column {name[:80]!r} to order by", next_step=f"There are: {', '.join(types)}")


def _rank(value: Value) -> tuple[Any, ...]:
    """The servers' order of values: null first, NaN last."""
    if value is None:
        return (0,)
    return (2,) if value != value else (1, value)


@total_ordering
class _Descending:
    """Reverses the order of a value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self._value == other._value)

    def __lt__(self, other: _Descending) -> bool:
        return bool(other._value < self._value)
