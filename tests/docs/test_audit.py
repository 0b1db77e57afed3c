"""The page about the audit names every law, in the words that the command uses."""

from pathlib import Path

from stateside.billing.audit import LAWS

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


def test_the_page_has_the_laws_as_they_are() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert rows == [f"| {law.name} | {law.text} |" for law in LAWS]
