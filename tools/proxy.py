"""For `make test`: nginx, for the tests through a proxy, and promtool, for those of alerts. Standard library only.

    python tools/proxy.py STAMP         STAMP is touched once both are there; else the next `make test` looks again

One that is found is taken: STATESIDE_NGINX, or `nginx` on the PATH; promtool likewise. Else Debian's package is fetched
and laid out in `.venv/nginx` (0.5 MB) or `.venv/prometheus` (19 MB), without root, and no service is installed or
started. Where that is not possible it says what to do, and those tests are skipped with the same words: everything else
works without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ADVICE = (
    "install one (Debian: apt install nginx prometheus), or name it in STATESIDE_NGINX, STATESIDE_PROMTOOL; the tests"
    " that need it are skipped"
)
FOLDER = Path(sys.prefix) / "nginx"
PROMETHEUS = Path(sys.prefix) / "prometheus"
FETCH_S_MAX = 120


def main(stamp: Path) -> int:
    """Find or fetch both; never a reason for the rest to stop."""
    found = [_had("nginx", nginx, "nginx", FOLDER), _had("promtool", promtool, "prometheus", PROMETHEUS)]
    if all(found):
        stamp.touch()
    return 0


def _had(name: str, find: Callable[[Mapping[str, str]], str | None], package: str, folder: Path) -> bool:
    found, reason = find(os.environ), f"there is no {name}"
    if not found and shutil.which("apt-get") and shutil.which("dpkg"):
        print(f"proxy: fetching Debian's {package} ...", flush=True)
        reason = f"{name} could not be fetched ({fetch(folder, package)})"
        found = find(os.environ)
    print(f"proxy: {found or f'{reason}: {ADVICE}'}")
    return found is not None


def nginx(environ: Mapping[str, str], folder: Path = FOLDER) -> str | None:
    """The proxy to use; None if there is none."""
    named = environ.get("STATESIDE_NGINX") or shutil.which("nginx", path=f"{environ.get('PATH')}:/usr/sbin")
    return named or _fetched(folder / "usr" / "sbin" / "nginx")


def promtool(environ: Mapping[str, str], folder: Path = PROMETHEUS) -> str | None:
    """Prometheus' own check of rules; None if there is none."""
    named = environ.get("STATESIDE_PROMTOOL") or shutil.which("promtool", path=environ.get("PATH"))
    return named or _fetched(folder / "usr" / "bin" / "promtool")


def _fetched(path: Path) -> str | None:
    return str(path) if path.is_file() else None


def fetch(folder: Path, *names: str) -> str:
    """Lay Debian's packages of these names out in this folder; the last line of what went wrong, if something did."""
    with tempfile.TemporaryDirectory() as place:
        wrong = _run(place, "apt-get", "download", "-qq", *names)
        if wrong and os.geteuid() == 0:  # its lists may be empty, as in most images
            wrong = _run(place, "apt-get", "update", "-qq") or _run(place, "apt-get", "download", "-qq", *names)
        packages = map(str, Path(place).glob("*.deb"))
        return wrong or next(filter(None, (_run(place, "dpkg", "-x", each, str(folder)) for each in packages)), "")


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
