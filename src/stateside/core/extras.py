"""Extras: names that load on first use, and one error for a package that is not installed.

`pip install stateside` gives the client and the command line; everything else is in the extras of pyproject.toml. Each
package of ours belongs to one of them (`EXTRAS`) and imports nothing that the extra lacks: `tests/packaging` checks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from traceback import walk_tb
from typing import Any, Final

from stateside.core.errors import SetupError

LIGHT: Final = ""  # no extra
EXTRAS: Final = {  # the extra needed to import a package's modules; the longest name counts
    "stateside": "server",
    "stateside.__main__": LIGHT,
    "stateside.cli": LIGHT,
    "stateside.core.errors": LIGHT,
    "stateside.core.extras": LIGHT,
    "stateside.core.layout": LIGHT,
    "stateside.ops.doctor": LIGHT,
    "stateside.ops.project": LIGHT,
    "stateside.serving.clients": LIGHT,
    "stateside.journal.backends.kafka": "kafka",
    "stateside.pipeline": "spark",
    "stateside.pipeline.batch_spans": "otel",
    "stateside.testing": "spark",
    "stateside.billing.answers.pdf": "billing",
    "stateside.billing.pipeline": "spark",
    "stateside.testbed": "all",
}
DISTRIBUTIONS: Final = {  # of the imported names that differ from their distribution's
    "fpdf": "fpdf2",
    "jwt": "pyjwt",
    "opentelemetry": "opentelemetry-sdk",
    "py4j": "pyspark",
}
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?.*?(?:; .*extra == ['\"](\w+)['\"])?")


def extra_of(module: str) -> str:
    """The extra that a module of ours belongs to."""
    return next(EXTRAS[name] for name in _with_parents(module) if name in EXTRAS)


def distribution_of(imported: str) -> str:
    """The name under which pip knows an imported package."""
    top = imported.partition(".")[0]
    return DISTRIBUTIONS.get(top, top.replace("_", "-"))


@cache
def requirements() -> Mapping[str, Sequence[str]]:
    """The direct requirements of each extra, an included extra as `stateside[NAME]`; from the installed metadata."""
    from importlib.metadata import requires  # takes longer to import than this package

    found: dict[str, list[str]] = {}
    for text in requires("stateside") or ():
        name, included, extra = _parse(text)
        found.setdefault(extra, []).extend([f"{name}[{each}]" for each in included] or [name.lower()])
    return found


def lazy(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose public names, given by module, load on first use."""
    homes = {name: module for module, its in names.items() for name in its}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with explained():
            module = import_module(homes[name])
            return module if homes[name].endswith(f".{name}") else getattr(module, name)

    return load


@contextmanager
def explained() -> Iterator[None]:
    """Within it, a package that is not installed is a SetupError with the pip command."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = package_missing(error)
        if missing is None:
            raise
        raise missing from error


def package_missing(error: ModuleNotFoundError) -> SetupError | None:
    """The error for people, if a package of one of our extras is missing.

    The pip command names the extra of the package, and those of our modules that were being imported: who runs
    `stateside run` without Spark and without the server's packages learns of both at once.
    """
    package = distribution_of(error.name or "")
    needed = {extra for extra, names in requirements().items() if package in names}
    if not needed or "." in str(error.name):  # a part of an installed package is a mistake of the import
        return None
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    needed |= {extra_of(module) for module in modules if module.partition(".")[0] == "stateside"}
    extras = sorted(needed - {LIGHT} - {inner for extra in needed for inner in _included(extra)})
    return SetupError(
        f"This needs the package {package}, which is not installed",
        next_step=f"Install the extra that has it: pip install 'stateside[{','.join(extras)}]'",
    )


def _included(extra: str) -> set[str]:
    """The extras that an extra includes, directly or not."""
    direct = {_parse(name)[1][0] for name in requirements().get(extra, ()) if name.startswith("stateside[")}
    return direct.union(*(_included(inner) for inner in direct))


def _parse(requirement: str) -> tuple[str, list[str], str]:
    """Name, included extras, and extra of a requirement."""
    found = _REQUIREMENT.fullmatch(requirement)
    assert found, requirement
    return found[1], found[2].split(",") if found[2] else [], found[3] or LIGHT


def _with_parents(module: str) -> Iterator[str]:
    """The name and those of the packages that it lies in, from the longest on."""
    while module:
        yield module
        module = module.rpartition(".")[0]
