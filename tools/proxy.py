"""For `make test`: an nginx for the tests through a proxy, if the machine has none. Standard library only.

    python tools/proxy.py STAMP         STAMP is touched once there is one; without, the next `make test` looks again

One that is found is taken: STATESIDE_NGINX, or `nginx` on the PATH. Else Debian's package is fetched and laid out in
`.venv/nginx`: 0.5 MB, without root, and no service is installed or started. Where that is not possible it says what to
do, and those tests are skipped with the same words: everything else works without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ADVICE = "install one (Debian: apt install nginx), or name it in STATESIDE_NGINX; tests through a proxy are skipped"
FOLDER = Path(sys.prefix) / "nginx"
FETCH_S_MAX = 120


def main(stamp: Path) -> int:
    """Find or fetch it; never a reason for the rest to stop."""
    found, reason = nginx(os.environ), "there is no nginx"
    if not found and shutil.which("apt-get") and shutil.which("dpkg"):
        print("proxy: fetching Debian's nginx ...", flush=True)
        reason = f"nginx could not be fetched ({fetch(FOLDER)})"
        found = nginx(os.environ)
    print(f"proxy: {found or f'{reason}: {ADVICE}'}")
    if found:
        stamp.touch()
    return 0


def nginx(environ: Mapping[str, str], folder: Path = FOLDER) -> str | None:
    """The proxy to use; None if there is none."""
    named = environ.get("STATESIDE_NGINX") or shutil.which("nginx", path=f"{environ.get('PATH')}:/usr/sbin")
    fetched = folder / "usr" / "sbin" / "nginx"
    return named or (str(fetched) if fetched.is_file() else None)


def fetch(folder: Path) -> str:
    """Lay the package out in this folder; the last line of what went wrong, if something did."""
    with tempfile.TemporaryDirectory() as place:
        wrong = _run(place, "apt-get", "download", "-qq", "nginx")
        if wrong and os.geteuid() == 0:  # its lists may be empty, as in most images
            wrong = _run(place, "apt-get", "update", "-qq") or _run(place, "apt-get", "download", "-qq", "nginx")
        packages = [str(path) for path in Path(place).glob("nginx_*.deb")]
        return wrong or _run(place, "dpkg", "-x", *packages, str(folder))


def _run(place: str, *command: str) -> str:
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, timeout=FETCH_S_MAX)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return _last(done.stderr.splitlines()) if done.returncode else ""


def _last(lines: Sequence[str]) -> str:
    return lines[-1] if lines else "no reason given"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
