#!/bin/sh
# The steps of the image in deploy/Dockerfile:
#     image.sh build      in a copy of the sources: the locked packages and Stateside itself into SOURCES/.venv
#     image.sh runtime    in the final image: Debian's Python and tini, the user, the folders
# A mirror's settings come as build secrets (all optional): ca.pem, pip.conf, ivysettings.xml.
set -eu

packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends "$@" >/dev/null
    rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
}

mirrors() {
    secrets=/run/secrets
    [ ! -f $secrets/ca.pem ] || export SSL_CERT_FILE=$secrets/ca.pem PIP_CERT=$secrets/ca.pem
    [ ! -f $secrets/pip.conf ] || export PIP_CONFIG_FILE=$secrets/pip.conf
    [ ! -f $secrets/ivysettings.xml ] || export STATESIDE_IVY_SETTINGS=$secrets/ivysettings.xml
}

build() {
    mirrors
    packages ca-certificates python3 python3-venv
    python3 tools/setup.py  # every package by its hash, a Java among them
    uv="$PWD/.venv/bin/uv pip"
    # Not editable: the sources stay out of the image. Then without the tools that only builds need.
    $uv install --quiet --offline --no-deps --no-build-isolation --reinstall-package stateside --python .venv .
    STATESIDE_CACHE=$PWD/.venv/cache .venv/bin/python -c 'from stateside.pipeline import jars; jars.fetch("kafka")'
    $uv uninstall --quiet --python .venv setuptools pip uv
    .venv/bin/python -m compileall -q -j 2 .venv/lib  # a read-only file system keeps no compiled files
}

runtime() {
    packages ca-certificates procps python3 tini
    useradd --system --uid 10001 --user-group --home-dir /tmp --shell /usr/sbin/nologin stateside
    install -d -o stateside -g stateside -m 0700 /data /replicas
}

"$1"
