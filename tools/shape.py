"""The shape of the source, counted: modules, importers, names, lengths, wording. `make lint` prints these figures.

`python tools/shape.py --single` also lists the modules with one importer, each with its lines and its importer's.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path("src")
VAGUE = {"it", "that", "which", "what", "those", "these", "them", "this", "whoever", "again"}
NOUNS = {"billing", "rating", "invoicing", "serving", "testing", "testbed", "feed"}  # no participles

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    modules = {_name(path): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    own = [name for name in modules if not (SOURCE / name.replace(".", "/")).is_dir()]
    importers = _importers(modules)
    single = sorted(name for name in own if len(importers[name]) == 1)
    leaves = Counter(name.rsplit(".", 1)[-1] for name in own)
    nodes = [node for tree in modules.values() for node in ast.walk(tree)]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    lengths = {name: len((SOURCE / f"{name.replace('.', '/')}.py").read_text().splitlines()) for name in own}
    bodies = sorted(_bodies(modules))
    docs = " ".join(path.read_text() for path in [*Path().glob("*.md"), *Path("docs").rglob("*.md")])
    rows = {
        "modules": str(len(own)),
        "lines of a module": f"median {statistics.median(lengths.values()):.0f}, longest {max(lengths.values())}",
        "lines of source": f"{sum(len(path.read_text().splitlines()) for path in SOURCE.rglob('*.py')):,}",
        "modules with one importer": f"{len(single)} ({100 * len(single) / len(own):.0f} %)",
        "module names used twice or more": str(sum(count > 1 for count in leaves.values())),
        "participles as module names": str(sum(_is_participle(name) for name in leaves)),
        "class names used twice or more": str(sum(count > 1 for count in classes.values())),
        "lines of a function's body": f"median {statistics.median(bodies):.0f}, p90 {bodies[len(bodies) * 9 // 10]}",
        "vague pronouns per 10,000 words": f"{_vague(_docstrings(modules))} in docstrings, {_vague(docs)} in docs",
    }
    print("Shape of the source")
    for label, figure in rows.items():
        print(f"  {label:34}{figure}")
    for name in single if "--single" in sys.argv else ():
        (importer,) = importers[name]
        print(f"  {name} ({lengths[name]}) <- {importer} ({lengths.get(importer, 'package')})")


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _importers(modules: dict[str, ast.Module]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for importer, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (f"{node.module}.{alias.name}" for alias in node.names):
                    found[name if name in modules else node.module].add(importer)
    return found


def _is_participle(name: str) -> bool:
    return any(re.fullmatch(r"\w{2,}(ing|ed)", word) and word not in NOUNS for word in name.split("_"))


def _bodies(modules: dict[str, ast.Module]) -> Iterator[int]:
    """Lines of each function, without its signature and docstring."""
    for tree in modules.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                body = node.body[1:] if documented else node.body
                yield (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def _docstrings(modules: dict[str, ast.Module]) -> str:
    nodes = (node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, Documented))
    return " ".join(ast.get_docstring(node) or "" for node in nodes)


def _vague(text: str) -> int:
    words = [word.lower() for word in re.findall(r"[A-Za-z']+", text)]
    return 10_000 * sum(word in VAGUE for word in words) // max(1, len(words))


if __name__ == "__main__":
    main()
