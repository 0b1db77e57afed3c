"""Traces: from the request that appends an event, through the journal, to the span of the batch that folds the event.

Real SDK, real protocol: one test receives what the exporter sends. The reports of batches are as Spark makes them.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import stateside
from stateside.core.layout import Layout
from stateside.inspection.batch_reports import read_progress
from stateside.journal import Event, JournalWriter
from stateside.pipeline.batch_spans import EVENTS_MAX, LINKS_MAX, BatchSpans, parse
from stateside.pipeline.runner import batch_spans
from stateside.serving.web.event_routes import traced
from stateside.testing import run_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def parent(number: int) -> str:
    return f"00-{number + 1:032x}-{SPAN}-01"


def report(start: int, end: int, batch: int = 3) -> dict[str, Any]:
    """Spark's report of a batch with the events start <= offset < end."""
    source = {"startOffset": {"journal": "x", "0": start} if start else None, "endOffset": {"journal": "x", "0": end}}
    return {
        "batchId": batch,
        "timestamp": "2026-01-01T00:00:00.250Z",
        "numInputRows": end - start,
        "durationMs": {"triggerExecution": 300, "addBatch": 200},
        "sources": [source],
    }


def append(journal: Path, *traces: str | None) -> None:
    events = [
        Event(f"{trace}-{number}", "emma", "order", 0, {}, metadata={"traceparent": trace} if trace else {"by": "test"})
        for number, trace in enumerate(traces)
    ]
    with JournalWriter(journal) as writer:
        writer.append(events)


class Told:
    """Spans in memory."""

    def __init__(self, journal: Path) -> None:
        self._exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = BatchSpans(journal, provider)

    def of(self, progress: dict[str, Any]) -> tuple[Any, str | None]:
        traceparent = self.spans.tell("total", progress)
        (span,) = self._exporter.get_finished_spans()
        self._exporter.clear()
        return span, traceparent


def linked(span: Any) -> list[str]:
    return [f"{link.context.trace_id:032x}" for link in span.links]


def test_the_span_of_a_batch_is_linked_to_the_traces_of_its_events_alone(tmp_path: Path) -> None:
    append(tmp_path, parent(1), parent(2), None, parent(2), parent(3), "garbage")
    told = Told(tmp_path)
    span, traceparent = told.of(report(1, 6))
    assert linked(span) == [parent(number)[3:35] for number in (2, 3)]
    assert (span.name, span.parent, span.attributes["stateside.batch"]) == ("batch total", None, 3)
    assert span.end_time - span.start_time == 300_000_000
    assert span.attributes["stateside.input_rows"] == 5
    assert traceparent is not None and parse(traceparent) is not None
    assert f"{span.context.trace_id:032x}" == traceparent[3:35]
    assert linked(told.of(report(0, 1))[0]) == [parent(1)[3:35]]


def test_links_are_bounded_and_so_are_the_events_read_for_them(tmp_path: Path) -> None:
    append(tmp_path, *(parent(number) for number in range(LINKS_MAX + 5)))
    told = Told(tmp_path)
    assert len(linked(told.of(report(0, LINKS_MAX + 5))[0])) == LINKS_MAX
    append(tmp_path, *[None] * EVENTS_MAX, parent(99))
    assert linked(told.of(report(LINKS_MAX + 5, LINKS_MAX + 6 + EVENTS_MAX))[0]) == []


@pytest.mark.parametrize("offset", [None, 7, {"calls": {"0": 4}}, {"logOffset": 3}])
def test_a_batch_of_another_source_or_without_a_journal_has_a_span_without_links(tmp_path: Path, offset: Any) -> None:
    append(tmp_path / "journal", PARENT)
    progress = report(0, 1) | {"sources": [{"startOffset": None, "endOffset": offset}]}
    assert linked(Told(tmp_path / "journal").of(progress)[0]) == []
    assert linked(Told(tmp_path / "away").of(report(0, 1))[0]) == []


def event(**metadata: str) -> Event:
    return Event("1", "emma", "order", 0, {}, metadata=metadata)


def test_the_trace_of_a_request_goes_into_its_events() -> None:
    (found,) = traced([event(by="shop")], PARENT)
    assert found.metadata == {"traceparent": PARENT, "by": "shop"}
    (newer,) = traced([event()], f"01-{TRACE}-{SPAN}-00-more")
    assert newer.metadata == {"traceparent": f"00-{TRACE}-{SPAN}-00"}


@pytest.mark.parametrize("header", [None, "", "garbage", PARENT.upper(), PARENT + "-x", "x" * 10_000])
def test_without_a_valid_header_events_stay_as_they_are(header: str | None) -> None:
    assert traced([event(by="shop")], header) == [event(by="shop")]


def test_an_event_keeps_its_own_trace_and_one_without_room_goes_without() -> None:
    assert traced([event(traceparent="mine")], PARENT) == [event(traceparent="mine")]
    full = event(note="x" * 4_070)
    assert traced([full], PARENT) == [full]


def test_nothing_of_opentelemetry_is_asked_for_without_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "stateside.pipeline.batch_spans", None)  # importing it fails
    for settings in ({}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}):
        with monkeypatch.context() as given:
            if settings:
                given.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
            for name, value in settings.items():
                given.setenv(name, value)
            assert batch_spans(tmp_path, "shop") is None
    assert caplog.text == ""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        assert batch_spans(tmp_path, "shop") is None
    assert "pip install 'stateside[otel]'" in caplog.text


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExportTraceServiceRequest]]:
    """What a receiver of OTLP over HTTP gets, to which the environment points."""
    found: list[ExportTraceServiceRequest] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            found.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("named", [None, "billing-in-berlin"])
def test_spans_are_sent_where_the_environment_says(
    tmp_path: Path, received: list[ExportTraceServiceRequest], monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    if named is not None:
        monkeypatch.setenv("OTEL_SERVICE_NAME", named)
    append(tmp_path, PARENT)
    spans = batch_spans(tmp_path, "shop")
    assert spans is not None
    traceparent = spans.tell("total", report(0, 1))
    spans.close()
    (request,) = received
    (of,) = request.resource_spans
    names = {each.key: each.value.string_value for each in of.resource.attributes}
    assert names["service.name"] == (named or "shop")
    ((span,),) = [scope.spans for scope in of.scope_spans]
    assert [link.trace_id.hex() for link in span.links] == [TRACE]
    assert traceparent is not None and span.trace_id.hex() == traceparent[3:35]


@pytest.mark.spark
def test_a_run_sends_the_span_of_each_batch_and_notes_its_trace_in_the_report(
    spark: SparkSession, layout: Layout, received: list[ExportTraceServiceRequest]
) -> None:
    app = stateside.App("shop")

    @app.view(key=["entity"])
    def total(events: DataFrame) -> DataFrame:
        return events.groupBy("entity").count()

    append(layout.journal, PARENT)
    run_to(app, layout, spark)
    reported = [each["traceparent"] for each in read_progress(layout.view("total").progress)]
    spans = [
        span
        for request in received
        for of in request.resource_spans
        for scope in of.scope_spans
        for span in scope.spans
    ]
    assert [span.trace_id.hex() for span in spans] == [each[3:35] for each in reported]
    assert [link.trace_id.hex() for span in spans for link in span.links] == [TRACE]
