#!/usr/bin/env bash
# Builds a wheel with another CPython, installs it into a clean environment, serves, produces and consumes with it, and
# runs the unit tests of protocol, log and cleaner on it.
#
#   docker/verify_wheel.sh python3.12   a CPython with headers on this machine
#   docker/verify_wheel.sh trixie       the CPython of a Debian release (trixie has 3.13), in a chroot (root, mmdebstrap)
#
# Further arguments replace the tests to run; CFLAGS=-O0 compiles in a third of the time. To test without a compiler:
#
#   CC=/nonexistent TIDELOG_REQUIRE_EXTENSIONS=0 docker/verify_wheel.sh python3.12
set -euo pipefail
cd "$(dirname "$0")/.."

chosen=${1:?which Python, as python3.12, or which Debian release, as trixie}
shift
tests=${*:-tests/unit/protocol tests/unit/log tests/unit/cleaner}
required=${TIDELOG_REQUIRE_EXTENSIONS:-1}
if [ "$required" = 1 ]; then compiled=yes; else compiled=no; fi
root=${WORK:-$PWD/build/wheels}/${chosen//\//_}
given=(TIDELOG_REQUIRE_EXTENSIONS="$required" ${CC:+CC="$CC"} ${CFLAGS:+CFLAGS="$CFLAGS"})
if python=$(command -v "$chosen"); then
  inside() { (cd "$root" && env -i "${given[@]}" PATH="$root/venv/bin:$PATH" HOME="$HOME" bash -euc "$1"); }
  mkdir -p "$root"
  prefix=$root
else
  python=python3 prefix=
  command -v mmdebstrap >/dev/null || { echo "mmdebstrap is missing; install it with: apt-get install mmdebstrap" >&2; exit 1; }
  [ "$(id -u)" = 0 ] || { echo "needs root, for a chroot" >&2; exit 1; }

  inside() { chroot "$root" env -i "${given[@]}" PATH=/venv/bin:/usr/bin:/bin HOME=/root ${PIP_CERT:+PIP_CERT="$PIP_CERT"} bash -euc "$1"; }
  trap 'umount -q "$root/proc" "$root/dev" || true' EXIT
  if [ ! -x "$root/usr/bin/python3" ]; then
    rm -rf "$root"
    mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,python3-dev,gcc,libc6-dev,ca-certificates "$chosen" "$root"
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf ${PIP_CERT:-}; do
      if [ -e "$file" ]; then install -D -m 644 "$file" "$root$file"; fi
    done
  fi
  mount --bind /proc "$root/proc"
  mount --bind /dev "$root/dev"
fi
rm -rf "$root/source" "$root/tests" "$root/dist"
mkdir -p "$root/source" "$root/tests"
git archive HEAD | tar -x -C "$root/source"
git archive HEAD tests benchmarks pyproject.toml extensions.txt | tar -x -C "$root/tests"

inside "$python -m venv --clear $prefix/venv && cd $prefix/source && pip wheel --quiet --no-deps --wheel-dir $prefix/dist ."
inside "pip install --quiet $prefix/dist/*.whl && $prefix/source/docker/smoke.sh"
inside "pip install --quiet pytest pytest-asyncio pytest-timeout hypothesis aiokafka kafka-python confluent-kafka pytest-xdist"
inside "tidelog version | grep -qx 'compiled: $compiled'"
inside "cd $prefix/tests && PYTHONPATH=$prefix/tests python -m pytest -q -p no:cacheprovider $tests"
