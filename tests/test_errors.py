"""The error tree: drawn as it is, stable codes, whole across process borders."""

import pickle
import re
from collections.abc import Iterator

import pytest

import stateside.journal
from stateside.core import errors
from stateside.core.errors import JournalCorrupt, Misdirected, PipelineFailed, StatesideError, TooManyRequests

assert stateside.journal, "its errors belong to the tree too"


def subclasses(cls: type[StatesideError]) -> Iterator[type[StatesideError]]:
    for child in cls.__subclasses__():
        yield child
        yield from subclasses(child)


ALL: list[type[StatesideError]] = sorted(
    {StatesideError, *subclasses(StatesideError)}, key=lambda cls: (cls.__module__, cls.__qualname__)
)
DRAWN = re.findall(r"^    [│├└─ ]*(\w+) {2,}([a-z-]+)? *(\d{3})? ", errors.__doc__ or "", re.MULTILINE)


def test_the_tree_is_drawn_in_the_docstring_as_it_is() -> None:
    drawn = {(name, code, int(status)) for name, code, status in DRAWN if status}
    ours = {cls for cls in ALL if cls.__module__ == errors.__name__}
    groups = {cls for cls in ours if cls.__bases__ == (StatesideError,) and _has_children_there(cls)}
    assert drawn == {(cls.__name__, cls.code, cls.status) for cls in ours - groups - {StatesideError}}


def test_the_drawing_puts_every_error_under_its_parent() -> None:
    parent, before = "", StatesideError
    for name, code, _ in DRAWN:
        cls = getattr(errors, name)
        if name in {"InputError", "StateError", "OperatingError"}:
            parent = name
            assert cls.__bases__ == (StatesideError,)
        elif code and name != "StatesideError":
            assert cls.__bases__[0] in (getattr(errors, parent), before)
        before = cls


def test_every_code_belongs_to_one_error() -> None:
    codes = [cls.code for cls in ALL if "code" in vars(cls)]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)


def test_the_kind_of_an_error_tells_whose_fault_it_is_in_http_too() -> None:
    assert all(400 <= cls.status < 500 for cls in subclasses(errors.InputError))
    assert all(cls.status >= 500 or cls.status == 409 for cls in subclasses(errors.StateError))
    assert all(cls.status >= 500 or cls.status in (409, 429, 499) for cls in subclasses(errors.OperatingError))


def test_an_error_says_what_where_and_what_to_do_next_in_whole_sentences() -> None:
    error = JournalCorrupt("A frame is damaged.", where="x.segment, byte 24", next_step="Restore the file")
    assert str(error) == "A frame is damaged. (x.segment, byte 24). Restore the file."
    assert str(JournalCorrupt("A frame is damaged")) == "A frame is damaged."
    assert str(PipelineFailed("It ended", next_step="Start it again.")) == "It ended. Start it again."


def test_an_error_is_a_problem_document_which_does_not_tell_where_on_the_machine_it_was() -> None:
    error = JournalCorrupt("A frame is damaged", where="x.segment, byte 24", next_step="Restore the file")
    assert error.problem() == {
        "type": "urn:stateside:problem:journal-corrupt",
        "title": "journal corrupt",
        "status": 500,
        "detail": "A frame is damaged",
        "next_step": "Restore the file",
    }


def test_a_problem_document_leaves_out_what_is_not_known() -> None:
    assert set(JournalCorrupt("It is damaged").problem()) == {"type", "title", "status", "detail"}


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_crosses_process_borders_whole(cls: type[StatesideError]) -> None:
    error = cls("what", where="where", next_step="next")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (copy.what, copy.where, copy.next_step) == ("what", "where", "next")
    assert str(copy) == str(error)


def test_what_an_error_has_of_its_own_crosses_too() -> None:
    """A statement runs in another process: there it is found that another server has the rows."""
    location = {"share": "2/2", "servers": []}
    copy = pickle.loads(pickle.dumps(Misdirected("what", view="bill", leading=b"k", location=location)))
    assert (copy.view, copy.leading, copy.problem()["location"]) == ("bill", b"k", location)
    assert pickle.loads(pickle.dumps(TooManyRequests("what", retry_after_s=7))).retry_after_s == 7


def _has_children_there(cls: type[StatesideError]) -> bool:
    return any(child.__module__ == errors.__name__ for child in cls.__subclasses__())
