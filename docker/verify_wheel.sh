#!/usr/bin/env bash
# Builds a wheel with the Python of another Debian release, installs it there into a clean environment and runs the unit
# tests of protocol, log and cleaner on it. Needs root and mmdebstrap.
#
#   docker/verify_wheel.sh trixie     CPython 3.13
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:?which Debian release, as trixie}
root=${WORK:-$PWD/build/wheels}/$suite
command -v mmdebstrap >/dev/null || { echo "mmdebstrap is missing; install it with: apt-get install mmdebstrap" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "needs root, for a chroot" >&2; exit 1; }

inside() { chroot "$root" env -i PATH=/venv/bin:/usr/bin:/bin HOME=/root ${PIP_CERT:+PIP_CERT="$PIP_CERT"} bash -euc "$1"; }
trap 'umount -q "$root/proc" "$root/dev" || true' EXIT
if [ ! -x "$root/usr/bin/python3" ]; then
  rm -rf "$root"
  mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,python3-dev,gcc,libc6-dev,ca-certificates "$suite" "$root"
  for file in /etc/resolv.conf /etc/hosts /etc/pip.conf ${PIP_CERT:-}; do
    if [ -e "$file" ]; then install -D -m 644 "$file" "$root$file"; fi
  done
fi
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
rm -rf "$root/source" "$root/tests" "$root/dist"
mkdir -p "$root/source" "$root/tests"
git archive HEAD | tar -x -C "$root/source"
git archive HEAD tests benchmarks pyproject.toml extensions.txt | tar -x -C "$root/tests"

inside 'python3 -m venv --clear /venv && cd /source && TIDELOG_REQUIRE_EXTENSIONS=1 pip wheel --quiet --no-deps --wheel-dir /dist .'
inside 'pip install --quiet /dist/*.whl pytest pytest-asyncio pytest-timeout hypothesis aiokafka kafka-python && tidelog version'
inside 'tidelog version | grep -qx "compiled: yes"'
inside 'cd /tests && PYTHONPATH=/tests python -m pytest -q -p no:cacheprovider tests/unit/protocol tests/unit/log tests/unit/cleaner'
