"""Inferred views: what can be told of a query from its checkpoint alone, and what is refused, by name and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.storage import Storage
from stateside.views.catalogue import Catalogue, apart
from stateside.views.inference import Inferred, infer, safe_name
from tests.written import WINDOW, WORDS, Written, WrittenOperator, words

FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
USER, SESSION, COUNT = ("user", "string"), ("session_window", WINDOW), ("count", "long")


def inferred(folder: Path, *operators: WrittenOperator, **conf: str) -> Inferred:
    Written(folder, *operators, conf=conf).batch()
    found = infer(Storage.at(folder), folder.name)
    assert found is not None
    return found


def only(found: Inferred) -> Catalogue:
    assert found.refused == ()
    (view,) = found.views
    return view


def shown(view: Catalogue) -> tuple[list[str], list[str]]:
    return [column.name for column in view.key], [column.name for column in view.columns]


def test_an_aggregation_has_its_keys_and_its_raw_buffers(tmp_path: Path) -> None:
    view = only(inferred(tmp_path / "word-count", WORDS))
    assert (view.view, view.operator, view.kind) == ("word-count", 0, "aggregation")
    assert shown(view) == (["word"], ["count"])
    assert view.columns[0].aggregate == "value"


def test_it_is_of_its_query_and_of_no_other(tmp_path: Path) -> None:
    written = Written(tmp_path, WORDS)
    written.batch()
    found = infer(Storage.at(tmp_path), "words")
    assert found is not None
    assert found.query == written.query == only(found).query


def test_names_that_come_twice_get_a_number(tmp_path: Path) -> None:
    key = [("_groupingexpression", "string"), ("_groupingexpression", "long"), ("sum", "long")]
    value = [("sum", "double"), ("count", "long"), ("sum", "long"), ("count", "long")]
    view = only(inferred(tmp_path, WrittenOperator(key, value)))
    assert shown(view) == (
        ["_groupingexpression", "_groupingexpression_2", "sum"],
        ["sum_2", "count", "sum_3", "count_2"],
    )


def test_an_aggregation_of_state_format_1_shows_its_keys_once(tmp_path: Path) -> None:
    operator = WrittenOperator([USER], [USER, COUNT])
    assert shown(only(inferred(tmp_path / "old", operator, **{FORMAT: "1"}))) == (["user"], ["count"])
    assert shown(only(inferred(tmp_path / "new", operator))) == (["user"], ["user_2", "count"])


def test_a_window_is_a_column_of_the_key(tmp_path: Path) -> None:
    view = only(inferred(tmp_path, WrittenOperator([USER, ("window", WINDOW)], [COUNT])))
    assert shown(view) == (["user", "window"], ["count"])


def test_without_a_group_there_is_no_key(tmp_path: Path) -> None:
    assert shown(only(inferred(tmp_path, WrittenOperator([], [COUNT])))) == ([], ["count"])


@pytest.mark.parametrize("value", [[USER, SESSION, COUNT], [SESSION, USER, COUNT]])
def test_a_session_is_asked_by_its_start_behind_the_other_columns(tmp_path: Path, value: list[Any]) -> None:
    key = [USER, ("sessionStartTime", "timestamp")]
    view = only(inferred(tmp_path, WrittenOperator(key, value, "sessionWindowStateStoreSaveExec")))
    assert view.kind == "session"
    assert shown(view) == (["user", "session_window"], ["count"])
    user, session = view.key
    assert (user.stored.index, session.stored.index, session.asked_type) == (0, 1, "timestamp")
    assert session.whole is not None
    assert session.whole.index == value.index(SESSION)


def test_a_session_window_may_be_without_a_zone(tmp_path: Path) -> None:
    fields: list[Any] = [
        {"name": name, "type": "timestamp_ntz", "nullable": True, "metadata": {}} for name in ("start", "end")
    ]
    value = [USER, ("session_window", {"type": "struct", "fields": fields}), COUNT]
    key = [USER, ("sessionStartTime", "timestamp")]
    view = only(inferred(tmp_path, WrittenOperator(key, value, "sessionWindowStateStoreSaveExec")))
    assert shown(view) == (["user", "session_window"], ["count"])


def test_a_session_whose_window_is_not_where_it_should_be_is_refused(tmp_path: Path) -> None:
    key = [USER, ("sessionStartTime", "timestamp")]
    found = inferred(tmp_path / "visits", WrittenOperator(key, [COUNT, USER], "sessionWindowStateStoreSaveExec"))
    assert [refusal.view for refusal in found.refused] == ["visits"]
    assert "session window cannot be told" in found.refused[0].why


def test_keys_that_were_seen_have_no_columns_beside(tmp_path: Path) -> None:
    view = only(inferred(tmp_path, WrittenOperator([USER], [("__dummy__", "void")], "dedupe")))
    assert shown(view) == (["user"], [])


def test_keys_that_were_seen_within_a_watermark_say_how_long_they_are_remembered(tmp_path: Path) -> None:
    operator = WrittenOperator([USER], [("expiresAtMicros", "long")], "dedupeWithinWatermark")
    assert shown(only(inferred(tmp_path, operator))) == (["user"], ["expiresAtMicros"])


def test_several_operators_are_several_views_with_their_numbers(tmp_path: Path) -> None:
    seen = WrittenOperator([USER], [("__dummy__", "void")], "dedupe")
    found = inferred(tmp_path / "orders", WORDS, seen)
    assert [(view.view, view.operator) for view in found.views] == [("orders-0", 0), ("orders-1", 1)]


@pytest.mark.parametrize("name", ["globalLimit", "madeUpIn2030"])
def test_an_operator_that_cannot_be_served_is_refused_by_name_and_does_no_harm_to_others(
    tmp_path: Path, name: str
) -> None:
    found = inferred(tmp_path / "orders", WORDS, WrittenOperator([USER], [COUNT], name))
    assert [view.view for view in found.views] == ["orders-0"]
    (refusal,) = found.refused
    assert refusal.view == "orders-1"
    assert f"operator 1 is a {name}" in refusal.why
    assert "stateStoreSave" in refusal.why


def test_a_column_of_which_an_answer_would_lose_a_field_is_refused(tmp_path: Path) -> None:
    fields: list[Any] = [{"name": "a", "type": type_, "nullable": True, "metadata": {}} for type_ in ("long", "string")]
    pairs = {"type": "array", "elementType": {"type": "struct", "fields": fields}, "containsNull": True}
    found = inferred(tmp_path / "orders", WORDS, WrittenOperator([USER], [("max", pairs)]))
    assert [view.view for view in found.views] == ["orders-0"]
    assert "In its column max two fields have one name" in found.refused[0].why


def test_an_operator_without_metadata_is_of_an_older_spark(tmp_path: Path) -> None:
    Written(tmp_path, WORDS).batch()
    (tmp_path / "state" / "0" / "_metadata" / "metadata").unlink()
    found = infer(Storage.at(tmp_path), "words")
    assert found is not None
    assert "an older Spark" in found.refused[0].why


def test_an_operator_without_a_schema_is_refused_with_the_file(tmp_path: Path) -> None:
    Written(tmp_path, WORDS).batch()
    (tmp_path / "state" / "0" / "0" / "_metadata" / "schema").unlink()
    found = infer(Storage.at(tmp_path), "words")
    assert found is not None
    assert "state/0/0/_metadata/schema" in found.refused[0].why


def test_nothing_is_told_before_the_first_batch(tmp_path: Path) -> None:
    assert infer(Storage.at(tmp_path), "words") is None
    written = Written(tmp_path, WORDS)
    assert infer(Storage.at(tmp_path), "words") is None
    written.batch(words(a=1))
    assert infer(Storage.at(tmp_path), "words") is not None


@given(st.text(max_size=300))
def test_any_text_makes_a_name_that_means_nothing_in_paths_and_addresses(text: str) -> None:
    name = safe_name(text)
    assert 0 < len(name) <= 100
    assert safe_name(name) == name
    assert name.strip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""


@given(st.lists(st.sampled_from(["sum", "sum_2", "sum_3", "count"]), max_size=12))
def test_numbered_names_are_unique_and_the_first_of_each_keeps_its_own(names: list[str]) -> None:
    given_names = apart(names)
    assert len(set(given_names)) == len(names)
    assert all(new.startswith(old) for new, old in zip(given_names, names, strict=True))
