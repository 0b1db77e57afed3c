"""A document as a PDF for people: one page, or as many as its lines need.

The same document always gives the same bytes: nothing of the present goes in, not even the date. The fonts are the
standard PDF fonts, with Latin letters only; any other character of a name is written as its code point, `U+4E2D`, so
that no name is lost or ambiguous.
"""

from __future__ import annotations

from typing import Final

from fpdf import FPDF
from fpdf.enums import XPos, YPos

from stateside.billing.answers.document_store import Document, Line
from stateside.billing.calendar import local, utc
from stateside.billing.money import format_micros

TITLES: Final = {"invoice": "Invoice", "credit-note": "Credit note", "debit-note": "Debit note"}
IDS_SHOWN_MAX: Final = 50

_FONT: Final = "Helvetica"
_MARGIN_MM: Final = 20.0
_ROW_MM: Final = 7.5
_TOTAL_MM: Final = 20.0
_COLUMNS_MM: Final = (52.0, 30.0, 36.0, 18.0, 34.0)
_HEADINGS: Final = ("What", "Plan", "Quantity", "Events", "Amount")
_INK, _PALE, _RULE = (33, 37, 41), (108, 117, 125), (206, 212, 218)
_UNITS: Final = {"call": "seconds", "message": "messages", "data": "bytes"}
_NAMES: Final = {"call": "Calls", "message": "Messages", "data": "Data", "credit": "Credit"}


def render(document: Document, time_zone: str) -> bytes:
    """The document as a PDF, with its period's days in this time zone."""
    page = _PdfPage(document)
    page.add_page()
    _head(page, document, time_zone)
    _table(page, document)
    _total(page, document)
    _remarks(page, document)
    return bytes(page.output())


class _PdfPage(FPDF):
    """An A4 page with the document's number and the page number in the footer."""

    def __init__(self, document: Document) -> None:
        super().__init__(format="A4")
        self._foot = f"{TITLES[document.kind]} {document.number}"
        self.set_margins(_MARGIN_MM, _MARGIN_MM)
        self.set_auto_page_break(True, margin=25)
        self.set_title(self._foot)
        self.set_lang("en")
        self.set_creation_date(utc(document.period_end_us))
        self.c_margin = 0.0

    def footer(self) -> None:
        """Write the footer. FPDF calls this method for every page."""
        self.set_y(-15)
        self.text_line(f"{self._foot}, page {self.page_no()} of {{nb}}", size=8, color=_PALE, align="C")

    def text_line(
        self, text: str, *, size: float = 10, bold: bool = False, color: tuple[int, int, int] = _INK, align: str = "L"
    ) -> None:
        """Write a line over the whole width."""
        self.ink(size, bold, color)
        height_mm = size * 0.55
        self.cell(0, height_mm, latin(text), align=align, new_x=XPos.LMARGIN, new_y=YPos.NEXT)

    def ink(self, size: float, bold: bool = False, color: tuple[int, int, int] = _INK) -> None:
        """Set font and colour of the next text."""
        self.set_font(_FONT, "B" if bold else "", size)
        self.set_text_color(*color)

    def rule(self) -> None:
        """Draw a thin line over the whole width."""
        self.set_draw_color(*_RULE)
        self.set_line_width(0.2)
        self.line(self.l_margin, self.get_y(), self.w - self.r_margin, self.get_y())


def latin(text: str) -> str:
    """The text, with the code point for every character missing in the fonts."""
    return "".join(char if _is_latin(char) else f"U+{ord(char):04X}" for char in text)


def _is_latin(char: str) -> bool:
    return char.isprintable() and ord(char) < 256


def _head(page: _PdfPage, document: Document, time_zone: str) -> None:
    page.text_line(TITLES[document.kind], size=24, bold=True)
    page.text_line(document.number, size=12, color=_PALE)
    page.ln(8)
    first, last = _days(document, time_zone)
    facts = [("Customer", document.customer), ("Period", f"{document.period}   ({first} to {last}, {time_zone})")]
    facts += [("Corrects", f"Invoice {document.corrects}")] if document.corrects else []
    facts += [("Currency", document.currency)]
    for name, value in facts:
        page.ink(10, color=_PALE)
        page.cell(28, 6, name)
        page.ink(10)
        page.multi_cell(0, 6, latin(value), align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    page.ln(8)


def _days(document: Document, time_zone: str) -> tuple[str, str]:
    """The first and the last day of the period."""
    edges_us = (document.period_start_us, document.period_end_us - 1)
    first, last = (local(time_us, time_zone).date().isoformat() for time_us in edges_us)
    return first, last


def _table(page: _PdfPage, document: Document) -> None:
    _row(page, _HEADINGS, bold=True, color=_PALE)
    page.rule()
    for line in document.lines:
        if page.will_page_break(_ROW_MM):
            page.add_page()
            _row(page, _HEADINGS, bold=True, color=_PALE)
            page.rule()
        _row(page, _cells(line, document.currency))
    if document.rounding_micros:
        _row(page, ("Rounding", "", "", "", format_micros(document.rounding_micros, document.currency)), color=_PALE)
    page.rule()


def _cells(line: Line, currency: str) -> tuple[str, ...]:
    return (
        _name(line.type),
        line.plan,
        _quantity(line, currency),
        f"{line.events:,}",
        format_micros(line.charged_micros, currency),
    )


def _name(type_: str) -> str:
    kind, _, name = type_.partition(":")
    return f"{kind.capitalize()}: {name}" if name else _NAMES.get(type_, type_)


def _quantity(line: Line, currency: str) -> str:
    if line.type == "credit":
        return format_micros(line.quantity, currency)
    return f"{line.quantity:,} {_UNITS.get(line.type, '')}".strip()


def _row(page: _PdfPage, cells: tuple[str, ...], *, bold: bool = False, color: tuple[int, int, int] = _INK) -> None:
    page.ink(9.5, bold, color)
    for place, (cell, width_mm) in enumerate(zip(cells, _COLUMNS_MM, strict=True)):
        page.cell(width_mm, _ROW_MM, _fitted(page, latin(cell), width_mm - 2), align="L" if place < 2 else "R")
    page.ln(_ROW_MM)


def _fitted(page: _PdfPage, text: str, width_mm: float) -> str:
    """The text, truncated with dots to the column's width."""
    if page.get_string_width(text) <= width_mm:
        return text
    while text and page.get_string_width(f"{text}...") > width_mm:
        text = text[:-1]
    return f"{text}..."


def _total(page: _PdfPage, document: Document) -> None:
    if page.will_page_break(_TOTAL_MM):  # the total stays on one page
        page.add_page()
    page.ln(3)
    page.ink(12, bold=True)
    page.cell(sum(_COLUMNS_MM[:3]), 8, "Total" if document.is_invoice else "Difference")
    page.cell(0, 8, format_micros(document.charged_micros, document.currency), align="R")
    page.ln(9)
    exact = format_micros(document.amount_micros, document.currency)
    if document.amount_micros != document.charged_micros:
        how = "which is done once on each line" if document.rounding_micros is None else "of each line and of their sum"
        page.text_line(f"Before rounding, {how}: {exact}", size=8.5, color=_PALE)


def _remarks(page: _PdfPage, document: Document) -> None:
    if not document.event_ids:
        return
    page.ln(6)
    count = len(document.event_ids)
    events = "one event" if count == 1 else f"{count:,} events"
    page.text_line(f"Made because of {events} that came in after the period was closed:", size=9)
    page.ink(8.5, color=_PALE)
    more = count - IDS_SHOWN_MAX
    shown = ", ".join(document.event_ids[:IDS_SHOWN_MAX]) + (f", and {more:,} more" if more > 0 else "")
    page.multi_cell(0, 4.5, latin(shown), align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
