"""Project template of `stateside new`: a view, a test and a README, made from the templates in this folder.

A template is a file in its final form, with `NAME` for the project's name and `VERSION` for Stateside's version; `dot-`
in a file's name becomes `.`.
"""

from __future__ import annotations

import keyword
import re
import sys
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path

from stateside.core.errors import RequestInvalid
from stateside.core.extras import requirements

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}", re.ASCII)
_TEMPLATES = Path(__file__).with_name("templates")


def make_project(name: str, parent: Path) -> Path:
    """Create the project's folder; RequestInvalid if the name cannot be a module's, or the folder is in use."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or _is_taken(name):
        raise RequestInvalid(
            f"{name!r} cannot be the name of a project",
            next_step="Use a to z, 0 to 9 and _, up to 31 of them, and no name that Python or an installed package has",
        )
    folder = parent / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestInvalid(f"{folder} is there already", next_step="Choose another name, or move it away")
    folder.mkdir(parents=True, exist_ok=True)
    for template in sorted(_TEMPLATES.iterdir()):
        target = template.name.removesuffix(".template").replace("NAME", name).replace("dot-", ".")
        (folder / target).write_text(
            template.read_text().replace("NAME", name).replace("VERSION", version("stateside"))
        )
    return folder


def _is_taken(name: str) -> bool:
    """Whether a module of this name would shadow Python's own, an installed one, or one that the project installs."""
    installed = [path for path in sys.path if "site-packages" in path]
    taken = {"stateside", *sys.stdlib_module_names}.union(*requirements().values())
    return name in taken or PathFinder.find_spec(name, installed) is not None
