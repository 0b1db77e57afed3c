"""Traces go through: what a request brings, the answer and the log have."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.serving.health import logs
from stateside.serving.health.logs import JsonLines, Trace

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_request_s_trace_is_kept_with_a_part_of_our_own() -> None:
    trace = Trace.of(PARENT)
    name, value = trace.header()
    version, id_, span, flags = value.split("-")
    assert (name, version, id_, flags) == ("traceparent", "00", "4bf92f3577b34da6a3ce929d0e0e4736", "01")
    assert span != "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "garbage",
        PARENT.upper(),
        PARENT + "-more",
        PARENT[:-1],
        "ff" + PARENT[2:],
        "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + "-01",
        "a" * 10_000,
    ],
)
def test_without_a_trace_that_can_be_read_one_begins(text: str | None) -> None:
    first, second = Trace.of(text), Trace.of(text)
    assert first.trace != second.trace


def test_a_later_version_with_more_parts_is_understood() -> None:
    assert Trace.of("01" + PARENT[2:] + "-more").trace == "4bf92f3577b34da6a3ce929d0e0e4736"


@given(st.text())
def test_any_text_is_taken(text: str) -> None:
    Trace.of(text)


def test_lines_of_the_log_are_json_with_the_trace_and_the_stack() -> None:
    token = logs.current.set(Trace.of(PARENT))
    try:
        raise ValueError("on\nseveral lines")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "%s failed", ("GET",), (ValueError, error, None))
        line = JsonLines().format(record)
    finally:
        logs.current.reset(token)
    assert "\n" not in line
    found = json.loads(line)
    assert found["message"] == "GET failed"
    assert found["trace"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert "several lines" in found["stack"]
    assert found["time"].endswith("Z")
