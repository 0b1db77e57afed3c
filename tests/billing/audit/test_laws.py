"""The auditor passes right books, and finds every single thing that is made wrong in them."""
from pathlib import Path
from tests.billing.audit.books import right_books
def test_right(tmp_path: Path) -> None:
    found = right_books(tmp_path).audit()
    print("\n".join(found.lines()))
    assert found.ok
