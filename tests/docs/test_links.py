"""Links and pictures in the repository's Markdown exist, and so do their headings; `make docs` checks the site's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PAGES = sorted(page.relative_to(TOP) for page in [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")])
GENERATED = TOP / "docs" / "reference"  # made by `make docs`, which checks links to these pages
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The headings of a page, as MkDocs and forges name them in addresses."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", (TOP / page).read_text())):
        assert not target.startswith("http"), "docs refer to nothing outside of the repository"
        name, _, anchor = target.partition("#")
        file = ((TOP / page).parent / name).resolve() if name else TOP / page
        if file.parent != GENERATED:
            assert file.is_file(), f"{page}: {target}"
            assert not anchor or anchor in anchors(file), f"{page}: {target}"


def test_every_page_of_the_docs_is_in_the_index() -> None:
    index = (TOP / "docs" / "index.md").read_text()
    named = {Path("docs", name) for name in re.findall(r"\]\(([\w/-]+\.md)", index)}
    pages = {page for page in PAGES if page.parent == Path("docs")} - {Path("docs/index.md")}
    assert pages - named == set()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_source_file_that_is_named_exists(page: Path) -> None:
    for name in re.findall(r"`((?:[\w.-]+/)+[\w-]+\.py|tests/[a-z_/]+)`", (TOP / page).read_text()):
        assert any((base / name).exists() for base in (TOP, TOP / "src/stateside")), f"{page}: {name}"
