"""Billing's HTTP routes: bills and their explanations, invoices, totals and dead letters.

All answers are stamped, and take the same floor as `rows`. A customer's token reaches the customer's own bill and
documents, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from stateside.billing.answers import explain
from stateside.billing.answers.bills import BillPeriod, bill, bill_event, bill_periods
from stateside.billing.answers.document_store import (
    Archived,
    Document,
    DocumentArchive,
    DocumentStore,
    Gate,
    RowCount,
    followed,
)
from stateside.billing.answers.explain import Behind, Explainer, PeriodTrend
from stateside.billing.answers.letters import DeadLetterReader
from stateside.billing.answers.pace import Paces, label_before
from stateside.billing.answers.period_names import Ends, PublishedPlans
from stateside.billing.answers.totals import ROLLUP, ArchiveSums, TotalsPart, all_totals, period_totals
from stateside.billing.book.book import BookKeeper
from stateside.billing.calendar import Cycle
from stateside.billing.invoicing.documents import DEAD_LETTERS, DOCUMENTS
from stateside.billing.model import APPLICATION, VIEW, lateness_in_force
from stateside.billing.plans.file import load_plans, plan_file
from stateside.core import Clock, JsonFile, Layout, Storage, SystemClock, processes, try_lock
from stateside.core.errors import DocumentUnknown, RequestInvalid, RouteUnknown, StatesideError
from stateside.journal import open_journal
from stateside.serving import (
    EVENTS,
    FLOOR,
    JSON,
    File,
    Floor,
    Metric,
    Parameter,
    Request,
    Response,
    Route,
    Stamp,
    ViewAnswer,
    ViewReader,
    composed_stream,
    iso_time,
    not_whole,
    stamped,
    whole,
)
from stateside.spark_state import Checkpoint

PAGE_MAX: Final = 1_000
PAGE_DEFAULT: Final = 100


_PAGE = (whole("limit", "so many at most", least=1), whole("after", "a page's `cursor` is the next page's `after`"))
_PERIOD = (
    Parameter("period", "which one, like 2026-01; the newest by default"),
    Parameter("currency", "which one, where the period has several"),
    Parameter("type", "only events of this type on the bill"),
)
_WHICH = _PERIOD[:2]
_REASON = Parameter("reason", "only those with this reason, like unknown-customer")


def routes(layout: Layout) -> list[Route]:
    """Billing's routes for a folder, with shared caches."""
    api = Api(layout)
    bill = "every period of a customer with its state: draft, sealed, corrected"
    document = "one invoice or note; NUMBER.pdf is for people"
    changes = "a customer's bill, and from then on the periods that every batch changes, as server-sent events"
    behind = "the very events behind one period's balance, adding up to it"
    course = "what each day of a period added to the bill, and a forecast of the amount at its end"
    periods = "all periods that there are, oldest first, with their totals as /totals has them; each plan's currency"
    pace = (
        "what all bills are up to this hour of a period, against the one before at the same hour; null: not ready yet"
    )
    totals = "all customers' totals: live and sealed"
    started = "start an audit, unless one runs; it changes nothing"
    audit = "whether an audit runs that was started here, and what the last one said"
    letters = "events that break a rule: counted by reason, and a page of them"
    return [
        Route("/v1/customers/{customer}/bill", api.bill, bill, "customer", FLOOR),
        Route("/v1/customers/{customer}/bill/changes", api.changes, changes, "customer", FLOOR, kinds=(EVENTS,)),
        Route("/v1/customers/{customer}/bill/explain", api.explain, behind, "customer", (*_PERIOD, *_PAGE, *FLOOR)),
        Route("/v1/customers/{customer}/bill/course", api.course, course, "customer", (*_WHICH, *FLOOR)),
        Route("/v1/customers/{customer}/invoices", api.invoices, "a customer's invoices and notes", "customer", FLOOR),
        Route("/v1/invoices/{number}", api.invoice, document, "own", FLOOR, kinds=(JSON, "application/pdf")),
        Route("/v1/periods", api.periods, periods, "operator", FLOOR),
        Route("/v1/periods/{period}/totals", api.totals, totals, "operator", FLOOR),
        Route("/v1/periods/{period}/pace", api.pace, pace, "operator", FLOOR),
        Route("/v1/audit", api.audit, audit, "operator"),
        Route("/v1/audit", api.start_audit, started, "operator", method="POST"),
        Route("/v1/dead-letters", api.dead_letters, letters, "operator", (_REASON, *_PAGE, *FLOOR)),
        Route("/v1/dead-letters/{offset}", api.dead_letter, "one of them", "operator", FLOOR),
    ]


def metrics(layout: Layout) -> Callable[[Request], Awaitable[list[Metric]]]:
    """Billing's metrics for a folder."""
    return Api(layout).measure


class Api:
    """The handlers, with their readers of a folder."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._issued = DocumentStore(followed(layout))
        self._sums = ArchiveSums(followed(layout))
        self._documents, self._summed = (DocumentArchive(lambda: self._cycles().values()) for _ in range(2))
        self._letters = DeadLetterReader.of(layout)
        self._counts = {
            name: RowCount(followed(layout, table.name))
            for name, table in (("documents", DOCUMENTS), ("dead_letters", DEAD_LETTERS))
        }
        self._audits = Audits(layout)
        self._paces = Paces(layout)
        self._plans = PublishedPlans(lambda: load_plans(layout.view(VIEW)), str(plan_file(layout.view(VIEW))))

    @cached_property
    def _explainer(self) -> Explainer:
        """Made when first asked: a server also starts where the journal is no bills', or has several partitions."""
        journal, book = open_journal(self._layout.journal).log(), self._layout.view(VIEW).root / "book"
        return Explainer(journal, BookKeeper(journal, book), self._checkpoint)

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(Storage.at(self._layout.view(VIEW).checkpoint))

    async def bill(self, request: Request) -> Response:
        (customer,) = request.parts
        return await self._bill(await self._reader(request), customer, request.floor())

    async def changes(self, request: Request) -> Response:
        """The bill as a stream; only its start has a floor."""
        (customer,) = request.parts
        reader, floor, sent = await self._reader(request), request.floor(), None

        async def compose() -> tuple[str, Mapping[str, Any]] | None:
            nonlocal floor, sent
            before, sent = sent, (await self._bill(reader, customer, floor)).document
            floor = Floor()
            return bill_event(before, sent)

        return await composed_stream(request, reader, [customer], compose)

    async def _bill(self, reader: ViewReader, customer: str, floor: Floor) -> Response:
        answer, documents, archived = await self._of_customer(reader, customer, floor)
        return _marked(archived, bill(customer, answer.rows, documents, self._plans))

    async def explain(self, request: Request) -> Response:
        """The events behind a period of the customer's bill."""
        after, limit = _page(request)
        customer, archived, period, found = await self._behind(request)
        shown, more = explain.page(found, after, limit, request.parameters.get("type"))
        shown_period = explain.as_dict(period, shown, more, request.positions.offset)
        return _marked(archived, {"customer": customer, **shown_period})

    async def course(self, request: Request) -> Response:
        """The days of a period of the customer's bill."""
        customer, archived, period, found = await self._behind(request)
        days = PeriodTrend.of(period, found, self._plans, archived.stamp.watermark_us, lateness_in_force(self._layout))
        return _marked(archived, {"customer": customer, **days.as_dict()})

    async def invoices(self, request: Request) -> Response:
        """The customer's documents."""
        (customer,) = request.parts
        reader = await self._reader(request)
        _, documents, archived = await self._of_customer(reader, customer, request.floor())
        shown = [_shown(request, document) for document in documents]
        return _marked(archived, {"customer": customer, "documents": shown})

    async def invoice(self, request: Request) -> Response:
        """One document, as JSON or as a PDF."""
        number = request.parts[0].removesuffix(".pdf")
        stamp, gate = await self._gated(request)
        document, archived = await self._documents.read(
            stamp, request.floor(), lambda known: self._issued.by_number(number, gate, known=known)
        )
        request.holder.require_customer(document.customer if document else None)
        if document is None and archived.away is not None:
            raise archived.refusal(f"Whether there is a document {number[:80]!r} cannot be told: it is not known here")
        if document is None:
            raise DocumentUnknown(
                f"There is no document {number[:80]!r}", next_step="They are numbered like I-000000001"
            )
        if request.parts[0] == number:
            return _marked(archived, {"document": _shown(request, document)})
        from stateside.billing.answers import pdf  # of the extra [billing]; the other answers work without

        content = await asyncio.to_thread(pdf.render, document, self._time_zone(document))
        return Response({}, [stamp], file=File("application/pdf", content, f"{number}.pdf"))

    async def totals(self, request: Request) -> Response:
        (label,) = request.parts
        floor = request.floor()
        reader = await self._reader(request)
        ends = Ends.of(label, self._cycles())
        live = await self._all_live(reader, floor)
        sealed, archived = await self._sealed(live.stamp, floor, ends.ends_us, f"The period {label}")
        return _marked(archived, period_totals(ends, live.rows, sealed, self._plans))

    async def pace(self, request: Request) -> Response:
        """A period against the previous one."""
        (label,) = request.parts
        floor = request.floor()
        reader = await self._reader(request)
        plans = self._plans.all()
        before = label_before(label, self._cycles())
        live = await self._all_live(reader, floor)
        if before is None:
            return stamped(live.stamp, {"pace": None})
        ends = [Ends.of(name, self._cycles()) for name in (label, before)]
        every = [end_us for one in ends for end_us in one.ends_us]
        sealed, archived = await self._sealed(live.stamp, floor, every, f"The pace of {label}")
        totals = [period_totals(one, live.rows, sealed, self._plans) for one in ends]
        found = await self._paces.of(live.stamp, totals[0], totals[1], plans)
        made = replace(archived, stamp=live.stamp if found is None else found[0])
        return _marked(made, {"pace": None if found is None else found[1]})

    async def periods(self, request: Request) -> Response:
        """All periods, each with its totals."""
        floor = request.floor()
        reader = await self._reader(request)
        live = await self._all_live(reader, floor)
        sealed, archived = await self._sealed(live.stamp, floor, None, "")
        shown = await asyncio.to_thread(all_totals, live.rows, sealed, self._plans)
        currencies = {name: plan.currency for name, plan in self._plans.all().items()}
        return _marked(archived, {"periods": shown, "plans": currencies})

    async def measure(self, request: Request) -> list[Metric]:
        """The open and sealed amounts, and the numbers of documents and dead letters; nothing without bills.

        From the view's rollup, the sums of each file of documents, and the files' own row counts: no row is read twice.
        """
        if VIEW not in request.views.names() or request.views.get(VIEW).shape.catalogue.application != APPLICATION:
            return []
        live = await self._all_live(request.views.get(VIEW), Floor(wait_ms=0))
        sealed, archived = await self._sealed(live.stamp, Floor(wait_ms=0), None, "")
        if archived.away is not None:
            raise archived.away
        periods = await asyncio.to_thread(all_totals, live.rows, sealed, self._plans)
        return [*_amounts(periods), *await asyncio.to_thread(self._counted)]

    def _counted(self) -> list[Metric]:
        counts = {name: count.now() for name, count in self._counts.items()}
        return [
            Metric(f"stateside_billing_{name}_total", told, [((), counts[name])], kind="counter")
            for name, told in (("documents", "Invoices and notes issued"), ("dead_letters", "Events that break a rule"))
        ]

    async def audit(self, request: Request) -> Response:
        """Whether an audit runs, and the last result."""
        await self._reader(request)
        return Response(await asyncio.to_thread(self._audits.state))

    async def start_audit(self, request: Request) -> Response:
        await self._reader(request)
        return Response(await self._audits.start())

    async def dead_letters(self, request: Request) -> Response:
        """The number of dead letters by reason, and a page of them."""
        stamp = await self._stamp(request)
        after, limit = _page(request)
        reason, before = request.parameters.get("reason"), Gate.of(stamp).position
        counts = await asyncio.to_thread(self._letters.counts, before)
        letters = await asyncio.to_thread(
            lambda: self._letters.page(after=after, limit=limit + 1, reason=reason, before=before)
        )
        shown = [letter.as_dict() for letter in letters[:limit]]
        more = shown[-1]["offset"] if len(letters) > limit else None
        document = {"count": sum(counts.values()), "reasons": counts, "dead_letters": shown, "cursor": more}
        return stamped(stamp, document)

    async def dead_letter(self, request: Request) -> Response:
        """One dead letter, by its offset."""
        (text,) = request.parts
        stamp = await self._stamp(request)
        offset = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
        letter = await asyncio.to_thread(self._letters.get, offset, Gate.of(stamp).position)
        if letter is None:
            raise DocumentUnknown(f"There is no dead letter at offset {text[:80]!r}")
        return stamped(stamp, {"dead_letter": letter.as_dict()})

    async def _behind(self, request: Request) -> tuple[str, Archived, BillPeriod, list[Behind]]:
        """The customer, the requested period, and the events behind the period."""
        (customer,) = request.parts
        parameters = request.parameters
        reader = await self._reader(request)
        answer, documents, archived = await self._of_customer(reader, customer, request.floor())
        periods = bill_periods(answer.rows, documents, self._plans)
        label, currency = parameters.get("period"), parameters.get("currency")
        if not any(label in (None, one.period.label) and currency in (None, one.currency) for one in periods):
            ends = [archived.stamp.watermark_us] if label is None else Ends.of(label, self._cycles()).ends_us
            archived.require(ends, f"{label or 'The last period'} of {customer[:80]!r}")
        period = chosen(periods, customer, label, currency)
        found = await asyncio.to_thread(self._explainer.behind, customer, period, answer.stamp.position)
        return customer, archived, period, found

    async def _sealed(
        self, stamp: Stamp, floor: Floor, ends_us: Sequence[int] | None, what: str
    ) -> tuple[list[TotalsPart], Archived]:
        """The sealed part of the totals for periods with these ends, or for all; ArchiveAway if unknown."""
        gate = Gate.of(stamp)
        if ends_us is not None and all(end_us > gate.watermark_us for end_us in ends_us):
            return [], Archived(stamp)  # the periods are open: no document is needed
        found, archived = await self._summed.read(stamp, floor, lambda known: self._sums.of(ends_us, gate, known=known))
        archived.require(ends_us or (), what)
        return found or [], archived

    async def _all_live(self, reader: ViewReader, floor: Floor) -> ViewAnswer:
        """All customers' rows, summed; refused on a shard, because the documents are of all customers."""
        live = await reader.rollup(ROLLUP, [], floor)
        if live.stamp.share is not None:
            raise not_whole(live.stamp)
        return live

    def _cycles(self) -> dict[str, Cycle]:
        return {name: plan.cycle for name, plan in self._plans.all().items()}

    async def _of_customer(
        self, reader: ViewReader, customer: str, floor: Floor
    ) -> tuple[ViewAnswer, list[Document], Archived]:
        """The customer's live rows, and the documents that count: read after the rows, see `document_store`."""
        answer = await reader.rows([customer], floor)
        gate = Gate.of(answer.stamp)
        documents, archived = await self._documents.read(
            answer.stamp, floor, lambda known: self._issued.of_customer(customer, gate, known=known)
        )
        return answer, documents or [], archived

    async def _gated(self, request: Request) -> tuple[Stamp, Gate]:
        stamp = await self._stamp(request)
        return stamp, Gate.of(stamp)

    async def _stamp(self, request: Request) -> Stamp:
        """The stamp of an answer made of documents alone: its gate decides which documents count."""
        floor = request.floor()
        reader = await self._reader(request)
        return await reader.stamp(floor)

    async def _reader(self, request: Request) -> ViewReader:
        reader = await request.views.ready(VIEW, request.floor())
        if reader.shape.catalogue.application != APPLICATION:
            raise RouteUnknown(f"The application {reader.shape.catalogue.application!r} has no bills")
        return reader

    def _time_zone(self, document: Document) -> str:
        return self._plans.get(document.lines[0].plan).cycle.time_zone


def _amounts(periods: Sequence[Mapping[str, Any]]) -> list[Metric]:
    """The amounts of all periods, in units of their currency."""
    parts = [each for period in periods for each in period["currencies"]]
    currencies = sorted({each["currency"] for each in parts})

    def metric(name: str, told: str, field: str) -> Metric:
        sums = [sum(each[field] for each in parts if each["currency"] == one) / 1_000_000 for one in currencies]
        return Metric(
            name, told, [((one,), amount) for one, amount in zip(currencies, sums, strict=True)], ("currency",)
        )

    return [
        metric("stateside_billing_open_amount", "Amount of all open bills", "open_micros"),
        metric("stateside_billing_sealed_amount", "Amount on all documents, with their rounding", "charged_micros"),
    ]


def _marked(archived: Archived, document: Mapping[str, Any]) -> Response:
    """The answer, with the availability of its documents."""
    return stamped(archived.labelled(), {**document, "archive": archived.as_dict()})


def chosen(periods: list[BillPeriod], customer: str, label: str | None, currency: str | None) -> BillPeriod:
    """The requested period, or the newest; RequestInvalid if there is none, or more than one."""
    names = sorted({period.period.label for period in periods})
    if label is None and periods:
        label = periods[-1].period.label
    found = [one for one in periods if one.period.label == label and currency in (None, one.currency)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise RequestInvalid(
            f"{customer[:80]!r} has no bill for {label or 'any period'}" + (f" in {currency}" if currency else ""),
            next_step=f"There are: {', '.join(names)}" if names else "Look at the customer's name",
        )
    raise RequestInvalid(
        f"{customer[:80]!r} has several bills for {label}",
        next_step=f"Say which with currency=: {', '.join(sorted(one.currency for one in found))}",
    )


def _shown(request: Request, document: Document) -> dict[str, Any]:
    """A document, with its position encoded for the principal."""
    return document.as_dict() | {"sealed_position": request.positions.offset(document.sealed_position)}


def _page(request: Request) -> tuple[int, int]:
    after, limit = request.offset("after"), request.number("limit", PAGE_MAX)
    if limit == 0:
        raise RequestInvalid(f"The parameter limit is 0, not a whole number from 1 to {PAGE_MAX}")
    return -1 if after is None else after, PAGE_DEFAULT if limit is None else limit


AUDIT_S_MAX: Final = 3_600
TEXT_CHARS_MAX: Final = 20_000
LOOK_S_MAX: Final = 0.25  # a check holds its shared lock for less than this
_TRY_S: Final = 0.01
_FOUND_NOTHING, _FOUND_SOMETHING = 0, 1  # the command's exit codes; any other means that the audit did not finish

_RESULT: JsonFile[dict[str, Any]] = JsonFile("The result of the audit", dict, dict)
log = logging.getLogger(__name__)


class Audits:
    """Audits started over HTTP: one at a time, in a child process that runs `stateside audit`.

    An audit changes nothing but the auditor's own ledger, so an audit is safe at any time. The last result is in a
    file, for every worker and for the next server. If the file cannot be written, the error is logged, and only the
    worker that ran the audit reports the result.

    A running audit holds an exclusive lock; a check whether an audit runs takes a shared lock for a moment, and `start`
    waits for that.

        audit/last.json     {"began": "2026-01-31T…Z", "ended": "…Z", "ok": true, "text": "events  1,234 = …"}
    """

    def __init__(self, layout: Layout, clock: Clock | None = None) -> None:
        self._layout, self._clock = layout, clock or SystemClock()
        self._last, self._lock = layout.audit / "last.json", layout.audit / ".asked.lock"
        self._running: set[asyncio.Task[None]] = set()
        # the last result of this worker, if its file could not be written
        self._unwritten: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        """Whether an audit started over HTTP runs, in any worker, and the last result; None before the first."""
        return {"running": self._is_running(), "last": self._read()}

    async def start(self) -> dict[str, Any]:
        """Start an audit, unless one runs."""
        self._layout.audit.mkdir(parents=True, exist_ok=True)
        lock = await self._locked()
        if lock is not None:
            task = asyncio.get_running_loop().create_task(self._run(lock))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return {"running": True, "last": self._read()}

    async def _run(self, lock: int) -> None:
        try:
            began = iso_time(self._clock.now_us())
            ok, text = await self._audit()
            self._write({"began": began, "ended": iso_time(self._clock.now_us()), "ok": ok, "text": _cut(text)})
        finally:
            os.close(lock)

    async def _locked(self) -> int | None:
        """The exclusive lock; None if another audit holds the lock, after waiting LOOK_S_MAX for shared locks."""
        deadline_s = time.monotonic() + LOOK_S_MAX
        while (lock := try_lock(self._lock)) is None and time.monotonic() <= deadline_s:
            await asyncio.sleep(_TRY_S)
        return lock

    def _write(self, found: dict[str, Any]) -> None:
        try:
            _RESULT.write(self._last, found)
            self._unwritten = None
        except (OSError, StatesideError) as error:
            log.error("What the audit said cannot be written to %s: %s", self._last, error)
            self._unwritten = found

    async def _audit(self) -> tuple[bool | None, str]:
        """The command's verdict and output; None as verdict if the audit did not finish."""
        command = [sys.executable, "-m", "stateside", "audit", str(self._layout.root)]
        try:
            code, output, errors = await processes.run(command, AUDIT_S_MAX)
        except TimeoutError:
            return None, f"The audit took more than {AUDIT_S_MAX} s, and was ended"
        except OSError as error:
            log.error("The audit cannot be run: %s", error)
            return None, f"The audit cannot be run: {error.strerror or error}"
        if code in (_FOUND_NOTHING, _FOUND_SOMETHING) and output.strip():
            return code == _FOUND_NOTHING, output.strip()
        return None, errors.strip() or f"The audit ended with {code}"

    def _is_running(self) -> bool:
        if not self._lock.exists():
            return False
        lock = try_lock(self._lock, shared=True)
        if lock is None:
            return True
        os.close(lock)
        return False

    def _read(self) -> dict[str, Any] | None:
        """The last result: from the file, unless a newer one could not be written."""
        try:
            written = _RESULT.read_if_valid(self._last)
        except OSError:
            written = None
        known = [found for found in (written, self._unwritten) if found is not None]
        return max(known, key=lambda found: str(found.get("ended")), default=None)


def _cut(text: str) -> str:
    more = len(text) - TEXT_CHARS_MAX
    ending = f"\n… and {more:,} characters more, which `stateside audit` prints"
    return text if more <= 0 else text[:TEXT_CHARS_MAX] + ending
