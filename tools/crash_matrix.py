"""Writes docs/crash-matrix.md out of a report of `stateside chaos --all --json FILE`: `make chaos` calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stateside.testbed.chaos_report import matrix

PAGE = Path(__file__).parents[1] / "docs" / "crash-matrix.md"


def main() -> None:
    """Of the file that is named."""
    PAGE.write_text(matrix(json.loads(Path(sys.argv[1]).read_bytes())))


if __name__ == "__main__":
    main()
