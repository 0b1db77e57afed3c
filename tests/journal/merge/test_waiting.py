"""Events that wait: bounded, and with room again when they go on."""

import pyarrow as pa

from stateside.journal.backends.nodes.merger import Row, Waiting
from stateside.journal.columns import encode
from tests.journal.nodes.dying import event


def row(offset: int) -> Row:
    batch: pa.RecordBatch = encode([event(f"{offset}")], 7 + offset)
    return Row("a.1", offset, batch)


def test_those_that_go_on_leave_their_room_to_others() -> None:
    waiting = Waiting(bytes_max=3 * row(0).bytes + 2)
    for turn in range(5):
        for sequence in (2, 3, 4):
            assert waiting.put("emma", sequence, row(sequence)) is None
        assert waiting.forgotten == {}, f"turn {turn}"
        assert [found.offset for found in waiting.take("emma", 1)] == [2, 3, 4]
        assert "emma" not in waiting


def test_what_finds_no_room_is_remembered_by_its_first_offset_and_its_gap_by_its_first_time() -> None:
    waiting = Waiting(bytes_max=row(0).bytes)
    for offset in (5, 9, 8):
        waiting.put("emma", offset, row(offset))
    assert waiting.lowest() == {"a.1": 5}
    assert waiting.forgotten == {"a.1": 8}
    ((gap),) = waiting.gaps({"emma": 2})
    assert (gap.entity, gap.missing_sequence, gap.since_us) == ("emma", 3, 12)
    assert list(waiting.take("emma", 4)) != []
    assert waiting.take_forgotten() == {"a.1": 8}
    assert waiting.forgotten == {}


def test_the_same_event_read_again_is_no_second_one() -> None:
    waiting = Waiting()
    waiting.put("emma", 2, row(1))
    assert waiting.put("emma", 2, row(1)) is None
    other = row(4)
    assert waiting.put("emma", 2, other) is not None
