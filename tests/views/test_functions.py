"""The table of functions beside a view's checkpoint: it only ever grows."""

from pathlib import Path

import pytest

from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import CheckpointInvalid
from stateside.core.layout import Layout
from stateside.views.functions import FunctionTable, extend_functions

ALLOWANCE = Tiers((Tier(0, 0, 1), Tier(6_000, 90_000, 60)))
TIERS = Tiers((Tier(0, 100_000, 1), Tier(100, 50_000, 1), Tier(1_000, 10_000, 1)))


def test_a_view_has_its_functions_beside_its_checkpoint(layout: Layout) -> None:
    assert layout.view("bill").functions == layout.view("bill").root / "steps.json"


def test_a_table_that_nobody_wrote_yet_is_empty(tmp_path: Path) -> None:
    table = FunctionTable.load(tmp_path / "steps.json")
    assert table.entries == {}


def test_a_table_grows_and_is_read_again_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "view" / "steps.json"
    extend_functions(path, {("basic@1", "call"): ALLOWANCE})
    extended = extend_functions(path, {("basic@1", "data"): TIERS, ("basic@1", "call"): ALLOWANCE})
    assert FunctionTable.load(path) == extended
    assert extended.entries == {("basic@1", "call"): ALLOWANCE, ("basic@1", "data"): TIERS}


def test_a_table_is_written_only_if_there_is_something_new(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    extend_functions(path, {("basic@1", "call"): ALLOWANCE})
    before = path.stat()
    extend_functions(path, {("basic@1", "call"): ALLOWANCE})
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_functions_that_rows_were_shown_with_never_change(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    extend_functions(path, {("basic@1", "call"): ALLOWANCE})
    with pytest.raises(CheckpointInvalid, match="The function for basic@1/call is"):
        extend_functions(path, {("basic@1", "call"): TIERS})
    assert FunctionTable.load(path).entries["basic@1", "call"] == ALLOWANCE


def test_a_function_that_no_installed_package_provides_is_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    path.write_text('{"version": 1, "entries": [{"key": ["basic@1"], "spline": []}]}')
    with pytest.raises(
        CheckpointInvalid, match="no installed package provides the function 'spline', only steps"
    ) as told:
        FunctionTable.load(path)
    assert "install the package" in str(told.value.next_step)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"version": 2, "entries": []}', b'{"version": 1, "entries": [{}]}']
)
def test_a_damaged_table_says_which_file_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "steps.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointInvalid, match="The functions of the view cannot be read"):
        FunctionTable.load(path)
