"""Spans of batches for OpenTelemetry, each linked to the traces of the events that the batch has folded.

A producer's trace is in the metadata of its event (`traceparent`), and a batch folds events of many traces: so its span
is the root of a trace of its own, with links. At most LINKS_MAX events are linked, of the first EVENTS_MAX of a batch:
the links of a large batch are a sample. Only journals on files are read for them, not topics.

Where spans go is said by OpenTelemetry's own environment variables, among them OTEL_EXPORTER_OTLP_ENDPOINT,
OTEL_SERVICE_NAME and OTEL_TRACES_SAMPLER. A collector that is away costs spans, and nothing else.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, format_span_id, format_trace_id, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from stateside.core.errors import StatesideError
from stateside.journal import open_journal
from stateside.journal.backends.kafka.topic_folder import address_in

LINKS_MAX: Final = 32
EVENTS_MAX: Final = 10_000
FLUSH_MS_MAX: Final = 2_000
log = logging.getLogger(__name__)


class BatchSpans:
    """Makes the spans of all views of a run."""

    def __init__(self, journal: Path, provider: TracerProvider) -> None:
        self._journal, self._provider = journal, provider
        self._tracer = provider.get_tracer("stateside")

    @classmethod
    def by_environment(cls, journal: Path, application: str) -> BatchSpans:
        """Spans that are sent as the environment says; the service is called like the application by default."""
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):  # the SDK's own default
            resource = resource.merge(Resource({SERVICE_NAME: application}))
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(journal, provider)

    def tell(self, view: str, progress: Mapping[str, Any]) -> str | None:
        """Make the span of a finished batch by Spark's report; its `traceparent`, None if it is not sampled."""
        begin_ns = round(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1e9)
        took_ns = int(progress["durationMs"]["triggerExecution"]) * 1_000_000
        span = self._tracer.start_span(
            f"batch {view}",
            kind=SpanKind.CONSUMER,
            links=list(self._links(progress)),
            start_time=begin_ns,
            attributes={
                "stateside.view": view,
                "stateside.batch": int(progress["batchId"]),
                "stateside.input_rows": int(progress["numInputRows"]),
                **{f"stateside.{name}_ms": int(ms) for name, ms in progress["durationMs"].items()},
            },
        )
        span.end(begin_ns + took_ns)
        made = span.get_span_context()
        if not made.trace_flags.sampled:
            return None
        return f"00-{format_trace_id(made.trace_id)}-{format_span_id(made.span_id)}-{made.trace_flags:02x}"

    def close(self) -> None:
        """Send what is left, for FLUSH_MS_MAX at most."""
        self._provider.force_flush(FLUSH_MS_MAX)
        self._provider.shutdown()

    def _links(self, progress: Mapping[str, Any]) -> Iterator[Link]:
        found: dict[str, SpanContext] = {}
        try:
            for traceparent in self._traces(progress):
                if traceparent not in found and (context := parse(traceparent)) is not None:
                    found[traceparent] = context
                if len(found) == LINKS_MAX:
                    break
        except (OSError, StatesideError) as error:  # the journal is away, or these events are dropped already
            log.info("a span of batch %s has no links: %s", progress["batchId"], error)
        return (Link(context) for context in found.values())

    def _traces(self, progress: Mapping[str, Any]) -> Iterator[str]:
        """The traces of a batch's events, as far as its sources are the journal."""
        if address_in(self._journal) is not None:
            return
        left, journal = EVENTS_MAX, open_journal(self._journal)
        for partition, start, stop in _ranges(progress, set(journal.partitions())):
            for _, batch in journal.batches(partition, start, min(stop, start + left)):
                yield from _traces_in(batch)
            left -= min(stop - start, left)


def _ranges(progress: Mapping[str, Any], partitions: set[str]) -> Iterator[tuple[str, int, int]]:
    for source in progress.get("sources", ()):
        start, end = source.get("startOffset") or {}, source.get("endOffset")
        if isinstance(end, dict) and "journal" in end:
            for partition in sorted(partitions & end.keys()):
                yield partition, int(start.get(partition, 0)), int(end[partition])


def _traces_in(batch: pa.RecordBatch) -> Iterator[str]:
    metadata = batch.column("metadata")
    for text in metadata.filter(pc.fill_null(pc.match_substring(metadata, '"traceparent"'), False)).to_pylist():
        found = json.loads(text).get("traceparent")
        if isinstance(found, str):
            yield found


def parse(traceparent: str) -> SpanContext | None:
    """The context in a W3C `traceparent`; None for any other text."""
    extracted = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    context = get_current_span(extracted).get_span_context()
    return context if context.is_valid else None
