#!/usr/bin/env bash
# Builds the wheel for aarch64 with a cross compiler, and runs unit tests on it with Debian's CPython for arm64 under
# qemu-user. Needs root, for a chroot, and: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static mmdebstrap.
#
#   docker/verify_aarch64.sh                      the unit tests of the routines: half an hour, as each instruction is emulated
#   docker/verify_aarch64.sh tests/unit/log/find  these tests
#
# PYTHON is a CPython 3.11 with pip, setuptools and cython: Debian 12 has 3.11 for arm64.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
root=${WORK:-$PWD/build/aarch64}
tests=${*:-tests/unit/protocol tests/unit/log/records tests/unit/log/validation tests/unit/log/recovery
  tests/unit/log/producer tests/unit/log/segment tests/unit/log/files tests/unit/log/find tests/unit/cleaner/engine
  tests/unit/pipeline/engine tests/unit/pipeline/decode tests/unit/pipeline/sink tests/unit/broker/requests/test_direct.py
  tests/unit/broker/replica/fetching tests/unit/broker/handlers/test_replica_fetch.py}

say() { printf '== %s\n' "$*"; }
for tool in aarch64-linux-gnu-gcc qemu-aarch64-static mmdebstrap; do
  command -v "$tool" >/dev/null || { echo "$tool is missing; the first lines of this script say what to install" >&2; exit 1; }
done
[ "$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")')" = 3.11 ] || { echo "PYTHON must be a CPython 3.11" >&2; exit 1; }

if [ ! -x "$root/usr/bin/python3.11" ]; then
  say "Debian's CPython for arm64"
  rm -rf "$root"
  mmdebstrap --quiet --arch=arm64 --variant=extract --skip=check/qemu --include=python3,libpython3-dev,libstdc++6 bookworm "$root"
  cp "$(command -v qemu-aarch64-static)" "$root/qemu"
fi
if [ ! -e "$root/site/pytest" ]; then
  say "wheels of what the tests import"
  platforms=()
  for platform in manylinux2014 manylinux_2_17 manylinux_2_24 manylinux_2_26 manylinux_2_27 manylinux_2_28 manylinux_2_31 \
    manylinux_2_34 manylinux_2_35; do platforms+=(--platform "${platform}_aarch64"); done
  mapfile -t needed < <("$python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")')
  "$python" -m pip install --quiet --target "$root/site" --only-binary=:all: --python-version 3.11 "${platforms[@]}" "${needed[@]}" \
    pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis pyarrow aiokafka kafka-python confluent-kafka
fi

say "wheel"
include=$root/usr/include
rm -rf "$root/source" "$root/tests" "$root/wheel" "$root/dist"
mkdir -p "$root/source" "$root/tests/build" "$root/wheel"
git archive HEAD | tar -x -C "$root/source"
git archive HEAD tests benchmarks pyproject.toml extensions.txt | tar -x -C "$root/tests"
(cd "$root/source" && env TIDELOG_REQUIRE_EXTENSIONS=1 CC=aarch64-linux-gnu-gcc LDSHARED="aarch64-linux-gnu-gcc -shared" \
  CFLAGS="-O3 -I$include/python3.11 -idirafter $include" _PYTHON_HOST_PLATFORM=linux-aarch64 \
  SETUPTOOLS_EXT_SUFFIX=.cpython-311-aarch64-linux-gnu.so \
  "$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$root/dist" .)
ls "$root"/dist/*-linux_aarch64.whl
"$python" -m zipfile -e "$root"/dist/*.whl "$root/wheel"

say "tests"
# Tests look at their own descriptors in /proc: it is mounted in the chroot while they run.
mkdir -p "$root/proc"
mountpoint -q "$root/proc" || mount --bind /proc "$root/proc"
trap 'umount -l "$root/proc"' EXIT
emulated() {
  chroot "$root" /qemu -E PYTHONPATH=/wheel:/site:/tests -E PYTHONDONTWRITEBYTECODE=1 -E HOME=/root -E PATH=/usr/bin:/bin \
    /usr/bin/python3.11 "$@"
}
emulated -c 'import os; from tidelog.protocol.schema import engine; assert engine.IS_COMPILED and os.uname().machine == "aarch64"'
# shellcheck disable=SC2086  # one word for each test
emulated -c 'import os, sys, pytest
os.chdir("/tests")
# These fail under qemu. Two start a Python of their own, which needs a kernel that starts qemu for arm64 programs (binfmt_misc).
# Two look into the page cache with RWF_NOWAIT, which qemu does not know.
others = ["protocol/record/test_crc.py::test_importing_it_does_not_import_the_package",
          "protocol/schema/test_fields.py::test_importing_messages_compiles_nothing",
          "broker/replica/fetching/test_fetch_cursor.py::test_a_reader_of_large_batches_continues_without_a_search",
          "broker/replica/fetching/test_fetch_cursor.py::test_places_of_readers_are_bounded"]
others = [f"--deselect=tests/unit/{test}" for test in others]
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--timeout=600", *others, *sys.argv[1:]]))' $tests
