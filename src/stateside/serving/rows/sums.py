"""Sliding sums: a range of a tumbling window's buckets, combined into one row at read time.

The state holds every event once, in its bucket; a reader can ask for the sum of any range of whole buckets:

    from, to      times, each on a bucket's border; a time inside a bucket is refused, never moved
    last          a duration of whole buckets (90s, 15m, 24h, 7d), counted back from `to`
    no to         the end of this key's newest bucket or, if later, of the bucket with the newest event that the
                  watermark has seen: the same for all keys, so the sum of a key without new events falls to none
    no from, last all buckets of this key in the state

A computed column of a range is the sum of its buckets' values, as in a rollup; the function is not applied to the
range's total.

Under a watermark, buckets whose end the watermark has passed have left the state. A range that begins before the live
buckets is summed over sealed and live buckets if the view has an archive; otherwise the range is refused, because
numbers would be missing. A sealed bucket has values, no buffers: averages, `max_by` and `min_by` cannot be combined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from stateside.core.errors import RequestInvalid
from stateside.replica.keys import KeyCodec
from stateside.replica.store import Snapshot
from stateside.serving.stamp import Source, Stamp, iso_time, parse_time
from stateside.spark_state.unsafe_row import Value
from stateside.views.aggregates import Aggregate, Partial
from stateside.views.catalogue import Catalogue, Window
from stateside.views.functions import ComputedColumns, computed_sum
from stateside.views.state_catalogue import Decoder

BUCKETS_MAX = 10_000
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)", re.ASCII)
_UNITS_US = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


@dataclass(frozen=True, slots=True)
class BucketRange:
    """The range asked for; see the module docstring."""

    from_us: int | None = None
    to_us: int | None = None
    last_us: int | None = None

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> BucketRange:
        """The range in a request's parameters; RequestInvalid if the parameters name none."""
        times = {name: _time(name, parameters[name]) for name in ("from", "to") if name in parameters}
        last = parameters.get("last")
        if last is not None and "from" in times:
            raise RequestInvalid("Both from and last are given", next_step="Give one of them")
        return cls(times.get("from"), times.get("to"), None if last is None else _duration(last))


@dataclass(frozen=True, slots=True)
class RangeSum:
    """A range of buckets combined: the range, the number of buckets, and the values (None without buckets)."""

    start_us: int
    end_us: int
    buckets: int
    values: tuple[Value, ...] | None
    source: Source


SealedBuckets = Callable[[bytes, bytes], Iterator[Sequence[Value]]]  # the sealed rows' values, of a range of keys


class BucketSums:
    """Combines the buckets of one view."""

    def __init__(
        self,
        catalogue: Catalogue,
        codec: KeyCodec,
        decoder: Decoder,
        aggregates: Sequence[Aggregate],
        computed: ComputedColumns,
    ) -> None:
        self._catalogue, self._codec, self._decoder, self._aggregates = catalogue, codec, decoder, aggregates
        self._computed = computed
        self._sums = [*aggregates, *map(computed_sum, computed.columns)]

    def window(self, key: Sequence[Value]) -> Window:
        """The view's window; RequestInvalid if the view has none, or the buckets of this key cannot be combined."""
        window, names = self._catalogue.window, [column.name for column in self._catalogue.key]
        view = self._catalogue.view
        if window is None:
            raise RequestInvalid(
                f"The view {view!r} has no buckets to sum", next_step='Let it group by F.window("time", size) as well'
            )
        if names[-1] != window.column:
            raise RequestInvalid(
                f"The view {view!r} cannot be summed: its window is not the last part of its key",
                next_step=f"Declare the view with {window.column!r} last in its key",
            )
        if len(key) != len(names) - 1:
            raise RequestInvalid(
                "A sum is over the buckets of one key", next_step=f"Give the parts: {', '.join(names[:-1])}"
            )
        for each in self._aggregates:
            if each.apart:
                raise RequestInvalid(
                    f"The column {each.column.name!r} cannot be combined over buckets: {each.apart}",
                    next_step="Give it a view of its own, or use max_by or min_by of the event's time",
                )
        return window

    def read(
        self,
        snapshot: Snapshot,
        stamp: Stamp,
        key: Sequence[Value],
        span: BucketRange,
        source: Source | None = None,
        sealed: SealedBuckets | None = None,
    ) -> RangeSum | None:
        """The sum in a snapshot; None if no range was given and the key has no bucket to derive one from.

        Without a source, the live buckets; with `sealed` also those, if the range begins before the live ones.
        """
        window = self.window(key)
        bounds = self._bounds(snapshot, stamp, key, span, window, sealed if source in ("both", "archive") else None)
        if bounds is None:
            return None
        start_us, end_us = bounds
        _check_borders(start_us, end_us, window)
        if span.from_us is not None or span.last_us is not None:
            if source is None and sealed is not None and _is_closed(start_us, window, stamp):
                source = "both"
            elif source in (None, "live"):
                _check_live(start_us, window, stamp)
        first, end = (self._codec.encode([*key, (border_us,)]) for border_us in bounds)
        parts = iter(()) if source == "archive" else self._live_parts(key, snapshot.between(first, end))
        if sealed is not None and source in ("both", "archive"):
            parts = chain(parts, self._sealed_parts(sealed(first, end)))
        return RangeSum(start_us, end_us, *self._combine(parts), source or "live")

    def _bounds(
        self,
        snapshot: Snapshot,
        stamp: Stamp,
        key: Sequence[Value],
        span: BucketRange,
        window: Window,
        sealed: SealedBuckets | None,
    ) -> tuple[int, int] | None:
        prefix = self._codec.encode(key)
        end_us = self._newest_end(snapshot, stamp, prefix, window) if span.to_us is None else span.to_us
        if end_us is None:
            return None
        if span.last_us is not None:
            return end_us - span.last_us, end_us
        if span.from_us is not None:
            return span.from_us, end_us
        live = [self._border(found, 0) for found, _ in islice(snapshot.range(prefix), 1)]
        closed = (
            [] if sealed is None else [_start(row[len(key)]) for row in islice(sealed(prefix, prefix + b"\xff"), 1)]
        )
        return (min(live + closed), end_us) if live or closed else None

    def _newest_end(self, snapshot: Snapshot, stamp: Stamp, prefix: bytes, window: Window) -> int | None:
        newest = snapshot.last(prefix)
        ends = [] if newest is None else [self._border(newest, 1)]
        if window.delay_us is not None and stamp.watermark_us > 0:
            seen_us = stamp.watermark_us + window.delay_us
            ends.append(seen_us - (seen_us - window.offset_us) % window.size_us + window.size_us)
        return max(ends, default=None)

    def _border(self, key: bytes, which: int) -> int:
        bucket = self._codec.decode(key)[-1]
        assert isinstance(bucket, tuple)
        border = bucket[which]
        assert isinstance(border, int)
        return border

    def _combine(self, rows: Iterator[list[Partial]]) -> tuple[int, tuple[Value, ...] | None]:
        combined: list[Partial] | None = None
        count = 0
        for count, parts in enumerate(rows, 1):
            if count > BUCKETS_MAX:
                raise RequestInvalid(
                    f"More than {BUCKETS_MAX} buckets lie in this range", next_step="Ask for a shorter one"
                )
            if combined is None:
                combined = parts
            else:
                triples = zip(self._sums, combined, parts, strict=True)
                combined = [each.merge(before, further) for each, before, further in triples]
        if combined is None:
            return 0, None
        return count, tuple(each.total(part) for each, part in zip(self._sums, combined, strict=True))

    def _live_parts(self, key: Sequence[Value], rows: Iterator[tuple[bytes, bytes]]) -> Iterator[list[Partial]]:
        return (self._parts(key, self._decoder.decode(row)) for _, row in rows)

    def _sealed_parts(self, rows: Iterator[Sequence[Value]]) -> Iterator[list[Partial]]:
        for each in self._aggregates:
            if each.apart_finished:
                raise RequestInvalid(
                    f"The column {each.column.name!r} cannot be combined over sealed buckets: {each.apart_finished}",
                    next_step="Ask for a range of live buckets, or for the rows; or keep sum and count as columns",
                )
        for row in rows:
            values = zip(self._sums, row[len(self._catalogue.key) :], strict=True)
            yield [each.partial_of(value) for each, value in values]

    def _parts(self, key: Sequence[Value], row: Sequence[Value]) -> list[Partial]:
        parts = [each.partial(row) for each in self._aggregates]
        if self._computed.columns:
            values = [each.finish([row[place] for place in each.places]) for each in self._aggregates]
            computed = zip(self._sums[len(parts) :], self._computed.values(key, values), strict=True)
            parts += [each.partial((value, value is None)) for each, value in computed]
        return parts


def _check_borders(start_us: int, end_us: int, window: Window) -> None:
    for name, time_us in (("begins", start_us), ("ends", end_us)):
        if (time_us - window.offset_us) % window.size_us:
            below_us = time_us - (time_us - window.offset_us) % window.size_us
            raise RequestInvalid(
                f"The range {name} at {iso_time(time_us)}, inside a bucket; buckets are {_text(window.size_us)} long",
                next_step=f"Take {iso_time(below_us)} or {iso_time(below_us + window.size_us)}",
            )
    if start_us >= end_us:
        raise RequestInvalid(
            f"The range from {iso_time(start_us)} to {iso_time(end_us)} is empty", next_step="Let it end later"
        )


def _start(window: Value) -> int:
    assert isinstance(window, tuple)
    assert isinstance(window[0], int)
    return window[0]


def _is_closed(start_us: int, window: Window, stamp: Stamp) -> bool:
    """Whether the bucket that begins here has left the state."""
    return window.delay_us is not None and start_us + window.size_us <= stamp.watermark_us


def _check_live(start_us: int, window: Window, stamp: Stamp) -> None:
    """Refuse a range whose first buckets have left the state."""
    if not _is_closed(start_us, window, stamp):
        return
    closed_us = stamp.watermark_us - (stamp.watermark_us - window.offset_us) % window.size_us
    raise RequestInvalid(
        f"The range begins at {iso_time(start_us)}, but buckets before {iso_time(closed_us)} are closed and have left "
        "the state",
        next_step="Ask for a later range, or run the view with a longer delay in withWatermark",
    )


def _time(name: str, text: str) -> int:
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        raise RequestInvalid(
            f"The parameter {name} is {text[:80]!r}, which is no time", next_step="Write it like 2026-01-31T12:00:00Z"
        ) from None


def _duration(text: str) -> int:
    matched = _DURATION.fullmatch(text)
    if not matched or not int(matched[1]):
        raise RequestInvalid(
            f"The parameter last is {text[:80]!r}, which is no duration", next_step="Write it like 90s, 15m, 24h or 7d"
        )
    return int(matched[1]) * _UNITS_US[matched[2]]


def _text(duration_us: int) -> str:
    for unit, unit_us in reversed(_UNITS_US.items()):
        if duration_us % unit_us == 0:
            return f"{duration_us // unit_us}{unit}"
    return f"{duration_us} µs"
