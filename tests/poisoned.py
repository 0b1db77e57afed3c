"""A folder with modules that bear the names of others, as any folder may: who imports them by mistake is found out."""

from __future__ import annotations

from pathlib import Path

NAMES = "asyncio click decimal duckdb httpx json lmdb logging orjson pyarrow pydoc pyspark queue random rich stateside"
NAMES += " tempfile uuid uvicorn"


def poisoned(folder: Path) -> Path:
    """The folder, with such modules in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES.split():
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name} was imported from the current folder')\n")
    return folder
