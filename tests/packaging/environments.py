"""The project's wheel, and empty environments that it is installed into, as `pip install stateside[EXTRA]` would."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
BUILT_FROM = ("src", "pyproject.toml", "README.md", "LICENSE")


def uv(*arguments: str | Path, environ: dict[str, str] | None = None) -> str:
    done = subprocess.run([UV, *arguments], cwd=TOP, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def export(*chosen: str) -> str:
    """A part of uv.lock, as `name==version` lines with hashes."""
    options = ("--frozen", "--offline", "--no-emit-project", "--quiet")
    return uv("export", *options, *chosen, "--format", "requirements.txt")


def export_extra(extra: str) -> str:
    return export("--no-dev", *(("--extra", extra) if extra else ()))


def locked(extra: str) -> list[str]:
    """The names of all packages of an extra, those that its packages need among them."""
    return re.findall(r"^([\w.-]+)==", export_extra(extra), re.MULTILINE)


def only(exported: str, names: Collection[str]) -> str:
    """The lines of these packages alone."""
    packages = re.findall(r"^[\w.-]+==.*\n(?: +.*\n)*", exported, re.MULTILINE)
    return "".join(each for each in packages if each.partition("==")[0] in names)


def build_wheel(folder: Path) -> Path:
    """The wheel, built from a copy of the source by the locked setuptools of this environment."""
    copy = folder / "source"
    copy.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in BUILT_FROM:
        kept = TOP / name
        shutil.copytree(kept, copy / name, ignore=ignored) if kept.is_dir() else shutil.copy2(kept, copy / name)
    uv("build", "--wheel", "--offline", "--no-build-isolation", "--python", sys.executable, "-o", folder, copy)
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Environment:
    """A virtual environment apart from that of the tests."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def command(self) -> Path:
        return self.folder / "bin" / "stateside"

    def installed(self) -> set[str]:
        listed = uv("pip", "list", "--python", self.python, "--format", "freeze", "--quiet")
        return set(re.findall(r"^([\w.-]+)==", listed, re.MULTILINE))

    def install_locked(self, exported: str) -> None:
        """Install a part of uv.lock, refusing other bytes, out of uv's cache where it has them."""
        requirements = self.folder / "requirements.txt"
        requirements.write_text(exported)
        self.install("--require-hashes", "--requirements", requirements)

    def install(self, *wanted: str | Path) -> None:
        options = ("--python", self.python, "--no-build-isolation", "--quiet")
        uv("pip", "install", *options, *wanted, environ=_registry())

    def run(self, *command: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command of the environment, and nothing of the tests' own on its paths."""
        return subprocess.run(command, cwd=folder, env=self.environ(), capture_output=True, text=True, check=False)

    def stateside(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.run(self.command, *arguments, folder=folder)

    def environ(self) -> dict[str, str]:
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        kept = {k: v for k, v in os.environ.items() if k not in hidden and not k.startswith("PYTEST")}
        return kept | {"PATH": f"{self.folder / 'bin'}:{kept['PATH']}"}


def make_environment(folder: Path, wheel: Path, extra: str = "") -> Environment:
    uv("venv", "--quiet", "--python", sys.executable, folder)
    made = Environment(folder)
    if extra in ("spark", "all"):  # pyspark comes as source only, and is built with the locked setuptools
        made.install_locked(export("--only-group", "build"))
    made.install_locked(export_extra(extra))
    made.install("--no-index", f"stateside[{extra}] @ file://{wheel}" if extra else wheel)  # all it needs is there
    return made


def _registry() -> dict[str, str]:
    """uv's variables for this machine's registry, as `make setup` finds them."""
    spec = importlib.util.spec_from_file_location("stateside_setup", TOP / "tools" / "setup.py")
    assert spec and spec.loader
    setup = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    return {**os.environ, **setup.registry(setup.pip_config(), os.environ)}
