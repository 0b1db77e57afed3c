"""The short way to a row: one whole key, at the newest batch, in a view without an archive, all rows of which are for
who asks. Most questions are of this kind, so they are answered with as little as can be, and never wait.

What it says is to the byte what `lookup` says of the same key (`tests/serving/web/test_short_way.py`). Whatever is not
so simple, errors included, it leaves to the long way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import orjson

from stateside.replica.applied import AppliedBatch
from stateside.replica.keys import NO_KEY
from stateside.replica.moment import Moment
from stateside.replica.store import Snapshot
from stateside.serving.reading.holding import check_held
from stateside.serving.reading.reader import ViewReader
from stateside.serving.stamp import Stamp

_AGE: Final = b'"age_ms":0,'
_END: Final = b'],"cursor":null}'


class Told:
    """The stamp of a batch, with its headers and its text around the age: the same for all answers of the batch."""

    __slots__ = ("batch", "behind_age", "headers", "heard", "place", "stamp", "up_to_age")

    def __init__(self, snapshot: Snapshot, batch: AppliedBatch, stamp: Stamp) -> None:
        self.place, self.batch, self.heard = snapshot.databases, batch, stamp.age_basis == "heartbeat"
        self.stamp = replace(stamp, age_ms=0)
        self.headers = self.stamp.headers()[:-1]
        before, _, behind = orjson.dumps({"stamp": self.stamp.as_dict()}).partition(_AGE)
        self.up_to_age, self.behind_age = before + _AGE[:-2], _AGE[-1:] + behind[:-1] + b',"rows":['

    def is_of(self, snapshot: Snapshot, batch: AppliedBatch | None, heard: bool) -> bool:
        """Whether it is what this snapshot's stamp would be; of a replica that was rebuilt that has another name."""
        return self.batch is batch and self.heard is heard and self.place is snapshot.databases


class PointReader:
    """Finds the rows of single keys of one view."""

    def __init__(self, reader: ViewReader) -> None:
        self.reader, self._shape = reader, reader.shape
        self.parts = len(self._shape.key_texts.parts)  # of a whole key
        self.moment = Moment(reader.replica)
        self._snapshot: Snapshot | None = None  # of which is what follows
        self._told: Told | None = None
        self._since_us = 0

    def find(self, texts: Sequence[str]) -> tuple[Told, int, bytes] | None:
        """The answer for the whole key that these texts are: what it is an answer of, its age in ms, and its JSON.

        None, or an error, if the long way has to give it.
        """
        shape = self._shape
        key = shape.key_texts.parse(texts)
        encoded = shape.codec.encode(key) or NO_KEY
        snapshot = self.moment.snapshot()
        if snapshot is not self._snapshot:
            self._look(snapshot)
        told = self._told
        if told is None:
            return None
        row = snapshot.get(encoded)
        if told.stamp.share is not None:
            check_held(told.stamp, shape.codec, encoded)
        age_ms = max(0, (self.reader.clock.now_us() - self._since_us) // 1_000)
        shown = b""
        if row is not None:
            values = shape.values_of(key, row) if shape.keys_as_asked else shape.values(encoded, row)
            shown = orjson.dumps(shape.columns.shown(values))
        return told, age_ms, b"%b%d%b%b%b" % (told.up_to_age, age_ms, told.behind_age, shown, _END)

    def _look(self, snapshot: Snapshot) -> None:
        """Find out what answers are answers of, from now on."""
        self._snapshot = None
        batch, fresh_us = snapshot.batch(), snapshot.fresh_us()
        if self._told is None or not self._told.is_of(snapshot, batch, fresh_us is not None):
            stamp = self.reader.stamp_of(snapshot)
            self._told = None if stamp is None or batch is None else Told(snapshot, batch, stamp)
        if batch is not None:
            self._since_us = batch.committed_us if fresh_us is None else fresh_us
        self._snapshot = snapshot
