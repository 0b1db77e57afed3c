"""Billing's sink under two leaders: one that was paused in the middle of a batch, and the one that took over."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from stateside.core.errors import StatesideError
from stateside.core.layout import Layout
from stateside.leadership import ApplicationLease, Gates
from tests.billing.played import Query
from tests.billing.story import ENDS
from tests.billing.test_sink import AGAIN, DEAD, DEAD_LAST, EXPECTED, dead, told, write_story
from tests.sizes import not_in_fast, some

PAUSED_BATCH = 5  # it has a note, a late invoice and a late duplicate
STEPS = range(1, 8)


@not_in_fast("a whole story for each step; the sink's gate has tests of its own")
@pytest.mark.parametrize("first", ["the new leader", "the old leader"])
@pytest.mark.parametrize("step", some(STEPS, 4))
def test_an_old_leader_that_wakes_up_anywhere_in_a_batch_adds_and_changes_no_document(
    layout: Layout, step: int, first: str
) -> None:
    """The new one repeats the batch before, or after, the old one has gone on from where it was paused."""
    write_story(layout)
    ApplicationLease(layout.root).make()
    gates, new = Gates(layout.root), list[Query]()

    def pause(reached: int) -> None:
        if reached == step and not new:
            gates.shut_before(2)
            new.append(replace(old.copy(), layout=Layout(gates.open(2))))
            if first == "the new leader":
                new.append(new[0].run(ENDS[PAUSED_BATCH]))

    old = Query(Layout(gates.open(1)))
    for end in ENDS[:PAUSED_BATCH]:
        old = old.run(end)
    with suppress(StatesideError, OSError, RuntimeError):
        old.run(ENDS[PAUSED_BATCH], pause)
    query = new[-1]
    for end in ENDS[query.batch + 1 :]:
        query = query.run(end)
    assert told(layout) == EXPECTED
    assert dead(layout) == [*DEAD, *AGAIN, DEAD_LAST]
