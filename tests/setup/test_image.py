"""The image of deploy/Dockerfile, built without a container engine, and run as its user on a read-only root."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from stateside.core.processes import free_port
from tests.sizes import in_full
from tests.waiting import wait_until

TOP = Path(__file__).parents[2]
DOCKERFILE = (TOP / "deploy" / "Dockerfile").read_text()
USER = 10_001
# What an engine does with `--read-only --tmpfs /tmp:exec --network host` and two volumes.
CONTAIN = """
set -eu
root=$1 data=$2 replicas=$3
shift 3
mount --bind "$root" "$root"
mount --bind "$data" "$root/data"
mount --bind "$replicas" "$root/replicas"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -o remount,ro,bind "$root"
exec chroot --userspec=10001:10001 "$root" /usr/bin/env -i "$@"
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.network,
    pytest.mark.spark,
    pytest.mark.timeout(1_800),
    in_full("tests/setup/test_deploy.py checks what the image's files name"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces and another user's files"),
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="the image is made of Debian's packages"),
]


@dataclass(frozen=True)
class Container:
    """The image's files with a data volume and a volume for replicas."""

    root: Path
    data: Path
    replicas: Path

    def command(self, *command: str) -> list[str]:
        places = map(str, (self.root, self.data, self.replicas))
        namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts")
        return [*namespaces, "sh", "-c", CONTAIN, "sh", *places, *environment(), *command]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*command), capture_output=True, text=True, check=False, timeout=900)

    def stateside(self, *arguments: str) -> str:
        done = self.run(*entry_point(), *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


def environment() -> list[str]:
    (block,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)
    return str(block).replace("\\\n", " ").split()


def entry_point() -> Sequence[str]:
    (found,) = re.findall(r"^ENTRYPOINT (.+)$", DOCKERFILE, re.MULTILINE)
    return [str(word) for word in json.loads(found)]


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    folder = TOP / ".cache" / "image"  # the engine and the base are kept there
    done = subprocess.run([sys.executable, TOP / "tools" / "image.py", folder], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    volumes = [tmp_path_factory.mktemp(name) for name in ("data", "replicas")]
    for volume in volumes:
        os.chown(volume, USER, USER)
    return Container(folder / "root", *volumes)


def test_it_has_neither_root_nor_a_place_to_write_nor_tools_of_builds(container: Container) -> None:
    assert container.run("id", "-u").stdout.strip() == str(USER)
    for place in ("/", "/opt/stateside/.venv", "/usr/lib"):
        assert "Read-only file system" in container.run("touch", f"{place}/x").stderr
    assert container.run("python3", "-c", "import pip").returncode == 1
    assert not list(container.root.glob("opt/stateside/src")) and not list(container.root.rglob("run/secrets/*"))


def test_it_runs_an_application_on_spark_and_serves_it(container: Container, tmp_path: Path) -> None:
    container.stateside("billing", "generate", "--dir", "/data/billing", "--customers", "5", "--periods", "1")
    container.stateside("run", "stateside.billing.pipeline:app", "--dir", "/data/billing", "--until-caught-up")
    port, log = free_port(), tmp_path / "server.log"
    serve = ("serve", "--dir", "/data/billing", "--replicas", "/replicas", "--port", str(port))
    with log.open("wb") as output:
        server = subprocess.Popen(container.command(*entry_point(), *serve), stdout=output, stderr=output)
    try:
        wait_until(partial(is_ready, port), log.read_text)
        assert len(httpx.get(f"http://127.0.0.1:{port}/v1/views/bill/rows").json()["rows"]) > 0
        assert container.run(*health_check(port)).returncode == 0
        assert (container.replicas / "views" / "bill" / "replica").is_dir()
        (main,) = children(server.pid)
        os.kill(main, signal.SIGTERM)  # to tini, as an engine does
        assert server.wait(60) == 0, log.read_text()
    finally:
        server.kill()
        server.wait()
    assert container.run(*health_check(port)).returncode != 0


def health_check(port: int) -> Sequence[str]:
    (found,) = re.findall(r"^ +CMD (\[.+\])$", DOCKERFILE, re.MULTILINE)
    return [str(word).replace("8471", str(port)) for word in json.loads(found)]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx.TransportError:
        return False
