"""For `make test`: a Chromium for the tests of the pages, if the machine has none. Standard library only.

    python tools/browser.py STAMP       STAMP is touched once there is one; without, the next `make test` looks again

One that is found is taken: STATESIDE_CHROMIUM, or `chromium`, `google-chrome` and the like on the PATH. Else Debian's
package is installed, which only root can do. Where that is not possible it says what to do, and the tests with the mark
`browser` are skipped with the same words: everything else works without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ADVICE = "install one (Debian: apt install chromium), or name it in STATESIDE_CHROMIUM; tests in a browser are skipped"
INSTALL = ("apt-get", "install", "-y", "--no-install-recommends", "chromium")
INSTALL_S_MAX = 600


def main(stamp: Path) -> int:
    """Find or install it; never a reason for the rest to stop."""
    found = chromium(os.environ)
    reason = "there is no Chromium"
    if not found and os.geteuid() == 0 and shutil.which("apt-get"):
        print("browser: installing Debian's chromium ...", flush=True)
        reason = f"Chromium could not be installed ({install()})"
        found = chromium(os.environ)
    print(f"browser: {found or f'{reason}: {ADVICE}'}")
    if found:
        stamp.touch()
    return 0


def chromium(environ: Mapping[str, str]) -> str | None:
    """The browser to use; None if there is none."""
    named = environ.get("STATESIDE_CHROMIUM")
    return named or next(filter(None, (shutil.which(name, path=environ.get("PATH")) for name in NAMES)), None)


def install() -> str:
    """Install the package; the last line of what went wrong, if something did."""
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    last = ""
    for command in (("apt-get", "update", "-qq"), INSTALL):
        try:
            done = subprocess.run(
                command, env=environ, capture_output=True, text=True, check=False, timeout=INSTALL_S_MAX
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        last = (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else ""
    return last


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
