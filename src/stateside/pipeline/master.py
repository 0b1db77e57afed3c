"""Spark's master: the driver's own process, or a cluster named by the addresses of its masters.

    local[2]                       in the driver's own process
    spark://one:7077               a standalone cluster
    spark://one:7077,two:7077      a standalone cluster with standby masters: drivers find the leading one
    yarn, k8s://…                  other masters of Spark, passed on unchecked

On a cluster the executors are other processes. Their Python has the driver's packages if those packages lie at the same
paths: on the same machine, on a shared folder, or in the same image.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import sysconfig
from pathlib import Path

from stateside.core.errors import ClusterAway, SettingInvalid
from stateside.core.wait import retry

REACH_S_MAX = 10.0  # covers a master that is still starting
_PORT_MAX = 65_535
_LOOK_S = 0.2
_STANDALONE = "spark://"
_OTHERS = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|k8s://.+")


def masters_of(master: str) -> list[tuple[str, int]]:
    """The hosts and ports of a standalone cluster's masters, else empty; SettingInvalid for an unknown form."""
    if not master.startswith(_STANDALONE):
        if not _OTHERS.fullmatch(master):
            raise _no_master(master)
        return []
    return [_address(text, master) for text in master.removeprefix(_STANDALONE).split(",")]


def check_reachable(master: str, wait_s: float = REACH_S_MAX) -> None:
    """ClusterAway if no address of a standalone cluster accepts a connection within `wait_s`."""
    addresses = masters_of(master)

    def check() -> None:
        refusals = [_refusal(address, wait_s) for address in addresses]
        if addresses and None not in refusals:
            told = (f"{host}:{port} {refusal}" for (host, port), refusal in zip(addresses, refusals, strict=True))
            raise ClusterAway(
                f"No Spark master answers: {'; '.join(told)}",
                next_step="Check --master, and that a master runs there (a local one: stateside dev cluster)",
            )

    retry(check, ClusterAway, wait_s, _LOOK_S)


def cluster_conf(master: str) -> dict[str, str]:
    """Further Spark settings where executors are other processes: the import path of their Python."""
    return {"spark.executorEnv.PYTHONPATH": python_path()} if masters_of(master) else {}


def python_path() -> str:
    """The import path of this process beyond its Python's own folders, as PYTHONPATH."""
    own = {Path(place) for name, place in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))}
    places = [Path(entry).absolute() for entry in sys.path]  # an empty entry is the working directory
    others = [place for place in places if place.exists() and not own & {place, *place.parents}]
    return os.pathsep.join(dict.fromkeys(map(str, others)))


def _address(text: str, master: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= _PORT_MAX:
        raise _no_master(master)
    return host.strip("[]"), int(port)


def _no_master(master: str) -> SettingInvalid:
    return SettingInvalid(
        f"{master!r} is no place where Spark can run",
        next_step="Write local[2], or the addresses of a cluster's masters like spark://one:7077,two:7077",
    )


def _refusal(address: tuple[str, int], wait_s: float) -> str | None:
    """Why the connection failed; None if the address accepts connections."""
    try:
        socket.create_connection(address, timeout=max(wait_s, 1.0)).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return None
