"""Which package of ours needs which extra: `core/extras.py` and pyproject.toml against the imports of the source."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import stateside
from stateside.cli.group import COMMANDS, main
from stateside.core.extras import EXTRAS, distribution_of, extra_of, package_missing, requirements
from tests.packaging.environments import locked
from tests.sizes import not_in_fast

TOP = Path(__file__).resolve().parents[2]
SOURCE = TOP / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
POLARS = "polars"  # in no extra: `Answer.to_polars` alone needs it, and says so

WITHOUT = """
import sys
from importlib import import_module

hidden = {hidden!r}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def with_only(extra: str) -> str:
    """Code that hides every package which an installation of this extra lacks."""
    installed = {"stateside", *locked(extra)}
    tops = {
        top: {re.sub(r"[_.]", "-", name).lower() for name in names} for top, names in packages_distributions().items()
    }
    return WITHOUT.format(hidden=sorted(top for top, names in tops.items() if not names & installed))


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def third_party(path: Path) -> Iterator[str]:
    """Every package that a module imports anywhere, in functions and for types too, other than Python's and ours."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        tops = {name.partition(".")[0] for name in names}
        yield from tops - {"stateside", *sys.stdlib_module_names}


@pytest.mark.e2e
@pytest.mark.parametrize("extra", sorted(set(EXTRAS.values())))
def test_the_modules_of_an_extra_load_with_its_packages_alone(extra: str) -> None:
    own = [module for module in MODULES if extra_of(module) == extra and module != "stateside.__main__"]
    assert own
    done = python(with_only(extra) + f"for name in {own!r}: import_module(name)")
    assert done.returncode == 0, done.stderr


@not_in_fast("every module is parsed")
def test_each_imported_package_is_declared_in_exactly_one_place() -> None:
    declared = [name for names in requirements().values() for name in names if not name.startswith("stateside[")]
    assert len(declared) == len(set(declared))
    used = {distribution_of(name) for path in MODULES.values() for name in third_party(path)}
    assert used - set(declared) == {POLARS}


def test_each_name_in_the_map_is_a_package_or_module_of_ours() -> None:
    assert set(EXTRAS) <= set(MODULES)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["serve", "--dir", "shop-data"], "server"),
        (["append", "--dir", "shop-data"], "server"),
        (["token", "list", "--dir", "shop-data"], "server"),
        (["audit", "shop-data"], "server"),
        (["run", "shop:app", "--dir", "shop-data"], "spark"),
        (["demo"], "all"),
        (["chaos", "--list"], "all"),
    ],
)
def test_a_command_without_its_extra_is_refused_in_one_sentence(command: Sequence[str], extra: str) -> None:
    done = python(with_only("") + "from stateside.cli import main; main(prog_name='stateside')", *command)
    assert done.returncode in (1, 3)
    error = done.stderr.splitlines()[-1]
    assert error.startswith("Error: This needs the package "), done.stderr
    assert error.endswith(
        f"which is not installed. Install the extra that has it: pip install 'stateside[{extra}]'."
    ), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.e2e
def test_public_names_without_their_extra_are_refused_with_the_pip_command() -> None:
    code = "import stateside; stateside.Client, stateside.Event, stateside.Layout; stateside.App"
    done = python(with_only("") + code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("stateside.core.errors.SetupError: This needs the package ")
    assert "pip install 'stateside[spark]'" in done.stderr.splitlines()[-1]


def test_a_missing_package_of_somebody_else_is_no_extra_of_ours() -> None:
    for name in ("left_pad", "pyarrow.left_pad"):
        assert package_missing(ModuleNotFoundError(f"No module named {name!r}", name=name)) is None


def test_each_public_name_is_there() -> None:
    assert dir(stateside) == stateside.__all__
    assert all(getattr(stateside, name) is not None for name in stateside.__all__)
    with pytest.raises(AttributeError, match="module 'stateside' has no attribute 'Ap'"):
        _ = getattr(stateside, "Ap")  # noqa: B009


ON_TRIAL = {"advise"}  # not listed yet


@pytest.mark.e2e
def test_help_loads_every_command_and_no_extra() -> None:
    shown = python(with_only("") + "from stateside.cli import main; main(prog_name='stateside')", "--help")
    assert shown.returncode == 0, shown.stderr
    listed = [line.split()[0] for line in shown.stdout.partition("Commands:\n")[2].splitlines()]
    assert listed == sorted(COMMANDS.keys() - ON_TRIAL)
    loaded = "import sys; print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    code = f"import atexit\natexit.register(lambda: exec({loaded!r}))\nfrom stateside.cli import main\nmain(['--help'])"
    tops = json.loads(python(code).stderr.splitlines()[-1].replace("'", '"'))
    assert not {"httpx", "rich", "pyarrow", "numpy"} & set(tops)


def test_each_command_has_the_name_it_is_called_by() -> None:
    with main.make_context("stateside", ["views"]) as context:
        for name in COMMANDS:
            command = main.get_command(context, name)
            assert command is not None and command.name == name
        assert main.get_command(context, "vews") is None
