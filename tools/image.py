"""The image of deploy/Dockerfile on a Debian machine without a container engine, as root. Standard library only.

    python tools/image.py FOLDER       builds the image, and lays its files out in FOLDER/root

    1. engine   Debian's buildah and mmdebstrap, fetched and laid out in FOLDER: nothing is installed or started
    2. base     a Debian from this machine's own package source, in place of the image that the Dockerfile names
    3. build    the Dockerfile itself, with this machine's certificates and pip settings as build secrets
    4. root     the image's files

No registry of images is asked. `tests/setup/test_image.py` runs the result in namespaces of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from proxy import fetch

TOP = Path(__file__).resolve().parent.parent
RELEASE = "bookworm"
PACKAGES = ("buildah", "mmdebstrap", "libgpgme11", "libassuan0", "libdevmapper1.02.1", "libseccomp2")
SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
MIRRORS = {"ca.pem": Path("/etc/ssl/certs/ca-certificates.crt"), "pip.conf": Path("/etc/pip.conf")}
FILES = {
    "policy.json": '{"default": [{"type": "insecureAcceptAnything"}]}',  # nothing is fetched that could be signed
    "registries.conf": "",
    "containers.conf": "",
    "storage.conf": '[storage]\ndriver = "vfs"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n',
    "Base": "FROM scratch\nADD base.tar /\n",
}

# The engine's libraries lie over the machine's in a mount namespace: buildah starts itself again without variables.
APART = """
for libraries in "$ENGINE"/usr/lib/*-linux-gnu; do
    there=/usr/lib/${libraries##*/}
    mount -t overlay overlay -o "lowerdir=$libraries:$there" "$there" || exit 1
done
exec "$@"
"""


def main(folder: Path) -> int:
    """Build what is not there yet."""
    engine = folder / "engine"
    if not (engine / "usr/bin/buildah").is_file() and (wrong := fetch(engine, *PACKAGES)):
        print(f"image: buildah cannot be fetched: {wrong}", file=sys.stderr)
        return 1
    for name, text in FILES.items():
        (folder / name).write_text(text.format(folder=folder) if "{folder}" in text else text)
    environ = environment(folder, engine)
    if not (folder / "base.tar").is_file():
        source = next(file for file in SOURCES if file.is_file())
        run(environ, "mmdebstrap", "--variant=minbase", "--mode=root", "--quiet", RELEASE, folder / "base.tar", source)
    build(environ, folder, "localhost/base", "-f", folder / "Base", folder)
    secrets = [f"--secret=id={name},src={file}" for name, file in MIRRORS.items() if file.is_file()]
    base = ("--build-arg", "BASE=localhost/base")
    build(environ, folder, "localhost/stateside", *secrets, *base, "-f", TOP / "deploy" / "Dockerfile", TOP)
    lay_out(environ, folder)
    return 0


def environment(folder: Path, engine: Path) -> dict[str, str]:
    """The variables with which the programs of the engine find their parts and keep their files in the folder."""
    return {
        **os.environ,
        "PATH": f"{engine / 'usr/bin'}:{os.environ['PATH']}:/usr/sbin:/sbin",
        "ENGINE": str(engine),
        "PERL5LIB": str(engine / "usr/share/perl5"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
    }


def build(environ: Mapping[str, str], folder: Path, image: str, *arguments: str | Path) -> None:
    options = ("--signature-policy", folder / "policy.json", "--isolation", "chroot", "--network", "host")
    run(environ, "buildah", "build", *options, "--pull=never", "-t", image, *arguments)


def lay_out(environ: Mapping[str, str], folder: Path) -> None:
    """Copy the image's files to FOLDER/root, and delete the engine's own copies."""
    policy = ("--signature-policy", str(folder / "policy.json"))
    container = run(environ, "buildah", "from", *policy, "--pull=never", "localhost/stateside").strip()
    mounted = run(environ, "buildah", "mount", container).strip()
    shutil.rmtree(folder / "root", ignore_errors=True)
    run(environ, "cp", "--archive", mounted, folder / "root")
    run(environ, "buildah", "rm", container)
    run(environ, "buildah", "rmi", "--all", "--force")


def run(environ: Mapping[str, str], *command: str | Path) -> str:
    print("image:", *map(str, command[:2]), flush=True)
    apart = ("unshare", "--mount", "sh", "-c", APART, "sh")
    done = subprocess.run([*apart, *command], env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit("\n".join([*done.stdout.splitlines()[-10:], *done.stderr.splitlines()[-20:]]))
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
