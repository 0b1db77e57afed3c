"""Documents as PDFs: the same bytes each time, with everything that finance looks for."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace

import pytest

from stateside.billing.answers.document_store import Document, Line
from stateside.billing.answers.pdf import latin, render

START_US, END_US = 1_767_222_000_000_000, 1_769_900_400_000_000
INVOICE = Document(
    "I-000000042",
    "invoice",
    42,
    "emma",
    "2026-01",
    START_US,
    END_US,
    "EUR",
    (
        Line("call", "basic@3", 123_456, 345, 172_351_234, 172_350_000),
        Line("package:weekend", "basic@3", 2, 2, 9_980_000, 9_980_000),
        Line("credit", "basic@3", 5_000_000, 1, -5_000_000, -5_000_000),
    ),
    177_331_234,
    177_330_000,
    348,
    None,
    (),
    False,
    7,
    0,
)
NOTE = replace(
    INVOICE,
    number="N-000000003",
    kind="credit-note",
    lines=(Line("credit", "basic@3", 90_000, 1, -90_000, -90_000),),
    charged_micros=-90_000,
    amount_micros=-90_000,
    corrects="I-000000042",
    event_ids=tuple(f"e-{number}" for number in range(60)),
)


def text(pdf: bytes) -> str:
    """What the pages write, by the PDF's own operators."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    pages = b"\n".join(zlib.decompress(stream) for stream in streams)
    shown = " ".join(found.decode("latin-1") for found in re.findall(rb"\(((?:\\.|[^()\\])*)\) Tj", pages))
    return re.sub(" +", " ", shown.replace("\\(", "(").replace("\\)", ")"))


def test_an_invoice_says_who_what_when_and_how_much() -> None:
    shown = text(render(INVOICE, "Europe/Berlin"))
    for part in (
        "Invoice",
        "I-000000042",
        "emma",
        "2026-01-01 to 2026-01-31",
        "Calls",
        "123,456 seconds",
        "172.35 EUR",
        "Package: weekend",
        "-5.00 EUR",
        "Total",
        "177.33 EUR",
        "177.331234 EUR",
        "page 1 of 1",
    ):
        assert part in shown, part


def test_a_note_says_what_it_corrects_and_which_events_came_too_late() -> None:
    shown = text(render(NOTE, "Europe/Berlin"))
    for part in ("Credit note", "Invoice I-000000042", "Difference", "-0.09 EUR", "60 events", "e-0,", "and 10 more"):
        assert part in shown, part


def test_a_document_s_lines_and_its_rounding_add_up_to_its_total() -> None:
    rounded = replace(INVOICE, charged_micros=177_340_000, rounding_micros=10_000)
    shown = text(render(rounded, "Europe/Berlin"))
    assert "Rounding 0.01 EUR" in shown
    assert shown.index("-5.00 EUR") < shown.index("Rounding") < shown.index("Total 177.34 EUR")
    assert "Before rounding, of each line and of their sum: 177.331234 EUR" in shown
    old = text(render(replace(INVOICE, rounding_micros=None), "Europe/Berlin"))
    assert "Rounding" not in old
    assert "Before rounding, which is done once on each line: 177.331234 EUR" in old


def test_the_same_document_gives_the_same_bytes_whenever_it_is_asked_for() -> None:
    assert render(INVOICE, "Europe/Berlin") == render(INVOICE, "Europe/Berlin")


def test_many_lines_go_over_several_pages_and_none_is_lost() -> None:
    lines = tuple(Line(f"package:p{number}", "basic@3", 1, 1, 10_000, 10_000) for number in range(120))
    shown = text(render(replace(INVOICE, lines=lines), "Europe/Berlin"))
    assert all(f"Package: p{number} " in f"{shown} " for number in range(120))
    assert "page 5 of 5" in shown
    assert shown.index("page 4 of 5") < shown.index("Total") < shown.index("Before rounding"), "these stay together"


@pytest.mark.parametrize(
    ("name", "written"), [("Zoë", "Zoë"), ("中", "U+4E2D"), ("a\x07b", "aU+0007b"), ("€", "U+20AC")]
)
def test_characters_that_the_fonts_lack_are_written_as_their_numbers(name: str, written: str) -> None:
    assert latin(name) == written
    assert render(replace(INVOICE, customer=name), "Asia/Tokyo").startswith(b"%PDF")
