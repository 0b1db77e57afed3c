"""Schema paths: where Spark finds the schemas of a `transformWithState` again.

    state/OPERATOR/_metadata/v2/BATCH := "v2\n" {"stateStoreInfo": [{"stateSchemaFilePaths": [path…], …}], …}

Spark keeps these as whole paths, by the name that the checkpoint had in that run. Another leader reaches the same
folder through another gate, a restored or moved one lies elsewhere: Spark would look at the old place, and fail or
take the state for one without a schema. So before a query starts they are made to lead to where it will run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from stateside.storage import write_atomically

_VERSION = "v2"
_WITHIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*:)?.*/(?P<rest>state/\d+/_stateSchema/[^/]+/[^/]+)")


def bring_home(checkpoint: Path) -> None:
    """Let all schema paths in a checkpoint lead into it. Its driver's to call, while no query runs on it."""
    for entry in checkpoint.glob("state/*/_metadata/v2/*"):
        if entry.name.isdigit():
            _bring_home(entry, checkpoint.absolute())


def _bring_home(entry: Path, checkpoint: Path) -> None:
    metadata = _metadata(entry.read_text())
    if metadata is None or not _moved(metadata, checkpoint):
        return
    # Without its checksum a file is read as it is: between the two steps Spark would find either content right.
    entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
    content = f"{_VERSION}\n{json.dumps(metadata, ensure_ascii=False, separators=(',', ':'))}"
    write_atomically(entry, content.encode(), make_folder=False)


def _metadata(text: str) -> dict[str, Any] | None:
    """None of what is not as we know it: Spark says itself what it makes of that."""
    version, _, document = text.partition("\n")
    try:
        found = json.loads(document) if version == _VERSION else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _moved(metadata: dict[str, Any], checkpoint: Path) -> bool:
    """Put the paths right; whether any was not."""
    changed = False
    for store in metadata.get("stateStoreInfo", ()):
        before = store.get("stateSchemaFilePaths", [])
        after = [_path_in(path, checkpoint) for path in before]
        changed = changed or before != after
        store["stateSchemaFilePaths"] = after
    return changed


def _path_in(path: str, checkpoint: Path) -> str:
    found = _WITHIN.fullmatch(path)
    return path if found is None else f"{found['scheme'] or ''}{checkpoint}/{found['rest']}"
