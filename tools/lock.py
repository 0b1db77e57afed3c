"""`make lock`: write `uv.lock` and `tools/bootstrap.lock` again, both without a host name in them.

Which registry a machine takes its packages from is that machine's business (a mirror, a proxy, an air-gapped index);
which bytes are installed is ours. So the locks name versions, files and hashes, and no hosts:

    source = { registry = "https://HOST/simple" }          becomes    source = { registry = "pypi" }
    { url = "https://HOST/aa/bb/x-1.0.whl", hash = ... }    becomes    { filename = "x-1.0.whl", hash = ... }

uv reads the shortened form: `uv export --frozen` and `uv lock --check` work on it offline, and `uv lock` keeps the
versions it finds there. So locking again moves only what pyproject.toml asks for; `make lock ARGS=--upgrade` moves all.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
UV = TOP / ".venv" / "bin" / "uv"
LOCK = TOP / "uv.lock"
BOOTSTRAP = TOP / "tools" / "bootstrap.lock"
BOOTSTRAP_HEAD = "# The uv that sets up .venv, with its hashes for all platforms. Written by `make lock`.\n"


def main(arguments: list[str]) -> int:
    """Lock, strip the hosts, and report. The arguments (`--upgrade`, `--upgrade-package NAME`) are uv's own."""
    try:
        _uv("lock", *arguments)
        LOCK.write_text(without_hosts(LOCK.read_text()))
        BOOTSTRAP.write_text(bootstrap("--upgrade" in arguments))
    except subprocess.CalledProcessError as error:
        print(error.stderr or "", end="", file=sys.stderr)
        print("lock: uv could not resolve the dependencies, for the reason above; mend it and run `make lock` again.")
        return 1
    print(f"lock: wrote {LOCK.name} and {BOOTSTRAP.relative_to(TOP)}")
    return 0


def without_hosts(lock: str) -> str:
    """The text of a uv.lock with every registry and URL reduced to what is ours to say."""
    lock = re.sub(r'registry = "https?://[^"]*"', 'registry = "pypi"', lock)
    return re.sub(r'url = "https?://[^"]*/([^"/]+)"', r'filename = "\1"', lock)


def bootstrap(upgrade: bool) -> str:
    """The text of bootstrap.lock: the uv that is pinned there now, or the newest one, with all its hashes."""
    pinned = re.search(r"^uv==\S+", BOOTSTRAP.read_text(), re.MULTILINE) if BOOTSTRAP.exists() and not upgrade else None
    wanted = pinned.group() if pinned else "uv"
    options = ("--generate-hashes", "--universal", "--no-header", "--no-annotate", "--quiet")
    return BOOTSTRAP_HEAD + _uv("pip", "compile", *options, "-", stdin=wanted)


def _uv(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run([UV, *arguments], cwd=TOP, input=stdin, capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
