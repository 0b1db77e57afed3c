"""The live rows of the view `bill`, out of its replica, as readers see them: one snapshot, one batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from stateside.billing.audit.found import Live, Row, Standing
from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.computed import KnownSteps
from stateside.errors import NotFreshEnough, RequestInvalid
from stateside.layout import Layout
from stateside.replica.checksums import Unchecked
from stateside.replica.store import ReplicaReader
from stateside.replica.tail import Tail
from stateside.serving.reading.shape import Shape
from stateside.storage import Storage

VIEW = "bill"
ROLLUP = ("period_end", "plan", "type")
_ROLLUP_ROWS_MAX = 10_000_000


@contextmanager
def live_rows(layout: Layout) -> Iterator[Live]:
    """The rows of the newest batch that the replica has; RequestInvalid if this is no billing application's folder."""
    view = layout.view(VIEW)
    if not view.catalogue.exists():
        raise RequestInvalid(
            f"There is no view {VIEW!r} in {layout.root}", next_step="Name the folder of a billing application"
        )
    steps = KnownSteps(view.name, view.steps)
    shape = Shape(Catalogue.load(view.catalogue), Storage.at(view.checkpoint_location), steps)
    reader = _reader(layout)
    try:
        with reader.snapshot() as snapshot:
            batch = snapshot.batch()
            if batch is None:
                raise _no_batch(layout)
            standing = Standing(batch.batch, batch.position.one(), batch.watermark_us)
            rows: Iterator[Row] = (shape.row(key, row) for key, row in snapshot.range(b""))
            yield Live(standing, rows, shape.rollups.rows(snapshot, ROLLUP, [], _ROLLUP_ROWS_MAX))
    finally:
        reader.close()


def _reader(layout: Layout) -> ReplicaReader:
    """The replica's; one that an older Stateside wrote is loaded again, as no server has done so yet."""
    view = layout.view(VIEW)
    try:
        return ReplicaReader(view.replica)
    except FileNotFoundError:
        raise _no_batch(layout) from None
    except Unchecked:
        with closing(Tail(view)) as tail:
            tail.step()
        return ReplicaReader(view.replica)


def _no_batch(layout: Layout) -> NotFreshEnough:
    return NotFreshEnough(
        f"The view {VIEW!r} has no replica with a batch yet",
        next_step=f"Run the application, and `stateside serve --dir {layout.root}`, which keeps the replica",
    )
