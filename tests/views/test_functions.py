"""The table of functions beside a view's checkpoint: it only ever grows."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stateside.billing.plans.tiers import Tier, Tiers
from stateside.core.errors import CheckpointInvalid, ViewInvalid
from stateside.core.layout import Layout
from stateside.views.functions import ColumnFunction, FunctionTable, KnownFunctions, extend_functions, provided_function

ALLOWANCE = Tiers((Tier(0, 0, 1), Tier(6_000, 90_000, 60)))
TIERS = Tiers((Tier(0, 100_000, 1), Tier(100, 50_000, 1), Tier(1_000, 10_000, 1)))
TIMES = """
class Times:
    name = "times"

    def __init__(self, factor):
        self.factor = factor

    def value(self, number):
        return self.factor * number

    values = value

    def as_json(self):
        return (self.factor,)

    @classmethod
    def parse(cls, definition):
        return cls(*definition)
"""

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package that provides a function under a name: the class `Times`, which has no `__eq__`."""

    def installed(package: str, name: str) -> None:
        folder = tmp_path / package
        metadata = folder / f"{package}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (folder / f"{package}.py").write_text(TIMES)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[stateside.functions]\n{name} = {package}:Times\n")
        monkeypatch.syspath_prepend(folder)

    yield installed
    provided_function.cache_clear()


def times(package: str, factor: int) -> ColumnFunction:
    function: ColumnFunction = __import__(package).Times(factor)
    return function


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


def test_a_function_needs_no_comparison_of_its_own(tmp_path: Path, install: Install) -> None:
    path = tmp_path / "steps.json"
    install("plain_times", "times")
    extend_functions(path, {("a",): times("plain_times", 2)})
    functions = KnownFunctions("bill", path)
    assert functions.of(("a",)).value(21) == 42
    extend_functions(path, {("a",): times("plain_times", 2), ("b",): times("plain_times", 3)})
    assert functions.of(("b",)).value(21) == 63
    with pytest.raises(CheckpointInvalid, match="The function for a is"):
        extend_functions(path, {("a",): times("plain_times", 3)})


@pytest.mark.parametrize("registered", [None, "another_name", "times"])
def test_a_function_that_no_reader_could_load_is_refused_before_it_is_stored(
    tmp_path: Path, install: Install, registered: str | None
) -> None:
    path = tmp_path / "steps.json"
    extend_functions(path, {("a",): ALLOWANCE})
    before = path.read_bytes()
    if registered:
        install("other_times", registered)
    names: dict[str, type[ColumnFunction]] = {}
    exec(TIMES, {"__name__": "application"}, names)  # a class of its own, with the name "times"
    with pytest.raises(ViewInvalid, match="The function 'times' for b could not be read from a table again") as told:
        extend_functions(path, {("b",): names["Times"](2)})  # type: ignore[call-arg]
    assert "entry point of the group stateside.functions" in str(told.value.next_step)
    assert path.read_bytes() == before


def test_a_function_that_no_installed_package_provides_is_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    path.write_text('{"version": 1, "entries": [{"key": ["basic@1"], "spline": []}]}')
    with pytest.raises(
        CheckpointInvalid, match="no installed package provides the function 'spline', only steps"
    ) as told:
        FunctionTable.load(path)
    assert "install the package" in str(told.value.next_step)


def test_a_function_that_two_packages_provide_is_refused_with_both(tmp_path: Path, install: Install) -> None:
    path = tmp_path / "steps.json"
    install("first_times", "times")
    install("second_times", "times")
    both = "more than one installed package provides the function 'times': first_times, second_times"
    with pytest.raises(ViewInvalid, match=both):
        extend_functions(path, {("a",): times("first_times", 2)})
    path.write_text('{"version": 1, "entries": [{"key": ["a"], "times": [2]}]}')
    with pytest.raises(CheckpointInvalid, match=both) as told:
        FunctionTable.load(path)
    assert "no second one" in str(told.value.next_step)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"version": 2, "entries": []}', b'{"version": 1, "entries": [{}]}']
)
def test_a_damaged_table_says_which_file_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "steps.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointInvalid, match="The functions of the view cannot be read"):
        FunctionTable.load(path)
