#!/bin/sh
# Writes deploy/secret/spark-defaults.conf: the settings beside this script, and a new secret. An existing one is kept.
# The file is readable, for the container's user; its folder is not, for anybody else on this machine.
set -eu
umask 077
cd "$(dirname "$0")"
file=secret/spark-defaults.conf
[ ! -e $file ] || { echo "$file is there already; delete it for a new secret" >&2; exit 0; }
mkdir -p secret
secret=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
{ cat spark-defaults.conf; echo "spark.authenticate.secret           $secret"; } > $file.new
chmod 0444 $file.new
mv $file.new $file
echo "wrote $file" >&2
