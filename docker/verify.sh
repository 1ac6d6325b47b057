#!/usr/bin/env bash
# Builds the image and tries it for real, without a Docker engine: buildah builds, a chroot in a PID namespace of its own
# runs it, so that the broker is process 1. Needs root, buildah, mmdebstrap, kcat; make image calls it.
#
# What it shows: the image builds; it runs as a numeric non-root user on a read-only root, without even a /tmp to write;
# the health check of the image passes; kcat produces and consumes; the package is compiled;
# SIGTERM to process 1 ends it with 0; the data is there after a restart; it starts as Testcontainers starts Apache's
# and Confluent's images.
set -euo pipefail
cd "$(dirname "$0")/.."

work=${WORK:-build/image}
port=${PORT:-19292}
image=tidelog
base_image=tidelog-base
runtime_image=tidelog-runtime
python=${PYTHON:-python3}
buildah=(buildah --storage-driver vfs --root "$PWD/$work/storage" --runroot "$PWD/$work/run")

say() { printf '== %s\n' "$*"; }
fail() { printf 'image check failed: %s\n' "$*" >&2; exit 1; }
for tool in buildah mmdebstrap kcat unshare; do
  command -v "$tool" >/dev/null || fail "$tool is missing; install it with: apt-get install buildah mmdebstrap kcat util-linux"
done
[ "$(id -u)" = 0 ] || fail "needs root, for chroots and mounts"
mkdir -p "$work"

root=
container=
supervisor=
# Kill process 1, and with it all other processes of its namespace.
end_by_force() {
  pkill -KILL -P "$supervisor" || true
  wait "$supervisor" 2>/dev/null || true
  supervisor=
}
clean_up() {
  if [ -n "$supervisor" ]; then end_by_force; fi
  if [ -n "$root" ]; then umount -R "$root" 2>/dev/null || true; fi
  if [ -n "$container" ]; then "${buildah[@]}" rm "$container" >/dev/null 2>&1 || true; fi
}
trap clean_up EXIT

# Make the image $1: a Debian of mmdebstrap's variant $2 with the packages $3. Like Debian's slim images it has no manuals
# and translations. mmdebstrap's hook merges /usr, so that Debian's script for it, and Perl, are not needed.
make_base() {
  if "${buildah[@]}" images -q "$1" 2>/dev/null | grep -q .; then return; fi
  say "$1: a Debian with $3"
  mmdebstrap --quiet --variant="$2" --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --include="usr-is-merged,$3,ca-certificates" \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    bookworm "$work/base.tar"
  container=$("${buildah[@]}" from scratch)
  "${buildah[@]}" add -q "$container" "$work/base.tar" / >/dev/null
  "${buildah[@]}" commit -q "$container" "$1" >/dev/null
  "${buildah[@]}" rm "$container" >/dev/null
  container=
  rm -f "$work/base.tar"
}
make_base "$base_image" minbase python3,python3-venv
make_base "$runtime_image" essential python3  # without apt: nothing is installed into a running container

say "wheels of what the image installs"
"$python" -m pip wheel --quiet --wheel-dir "$work/wheels" --find-links "$work/wheels" '.' 'setuptools>=77' 'cython>=3.3'
rm -f "$work"/wheels/tidelog-*.whl

say "build"
"${buildah[@]}" bud -q --isolation chroot --format docker --volume "$PWD/$work/wheels:/wheels:ro" \
  --build-arg BASE="localhost/$base_image" --build-arg RUNTIME="localhost/$runtime_image" --build-arg PIP_OPTIONS="--no-index --find-links=/wheels" -t "$image" . >/dev/null

container=$("${buildah[@]}" from "localhost/$image")
mounted=$("${buildah[@]}" mount "$container")
inspected=$work/config.json
"${buildah[@]}" inspect --type image "localhost/$image" > "$inspected"
field() { "$python" -c 'import json, sys
config = json.load(open(sys.argv[1]))["Docker"]["config"]
for key in sys.argv[2:]:
    config = config.get(key) or []
print(*([config] if isinstance(config, str) else config), sep="\n")' "$inspected" "$@"; }
user=$(field User)
[[ $user =~ ^[1-9][0-9]*:[1-9][0-9]*$ ]] || fail "the user is '$user', not a numeric one that is not root"
mapfile -t environment < <(field Env)
mapfile -t entrypoint < <(field Entrypoint)
mapfile -t command < <(field Entrypoint; field Cmd)
given=("KAFKA_LISTENERS=PLAINTEXT://0.0.0.0:$port")
mapfile -t health < <(field Healthcheck Test | tail -n +2)
[ "${#health[@]}" -gt 0 ] || fail "there is no health check"

say "run ${command[*]} as $user, read-only root"
root=$PWD/$work/root
data=$PWD/$work/data
umount -R "$root" 2>/dev/null || true
rm -rf "$data"
mkdir -p "$root" "$data"
chown "$user" "$data"
mount --bind "$mounted" "$root"
mount -o remount,bind,ro "$root"
mount --bind "$data" "$root/var/lib/tidelog"
mount --bind /dev "$root/dev"

in_image() { chroot --userspec="$user" "$root" env -i "${environment[@]}" "${given[@]}" "$@"; }

start() {
  : > "$work/stdout"
  # shellcheck disable=SC2016  # expanded inside
  unshare --pid --fork --kill-child --mount-proc="$root/proc" \
    chroot --userspec="$user" "$root" env -i "${environment[@]}" "${given[@]}" \
    "${command[@]}" > "$work/stdout" 2> "$work/stderr" &
  supervisor=$!
  for _ in $(seq 600); do
    if grep -q '^tidelog ready on ' "$work/stdout"; then return; fi
    kill -0 "$supervisor" 2>/dev/null || fail "it ended: $(tail -n 3 "$work/stderr")"
    sleep 0.05
  done
  fail "it was not ready in 30 s: $(tail -n 3 "$work/stderr")"
}

stop() {
  local broker
  broker=$(pgrep -P "$supervisor")
  [ "$(awk '/^NSpid:/ {print $NF}' "/proc/$broker/status")" = 1 ] || fail "the broker is not process 1"
  [ "$(awk '/^Uid:/ {print $2}' "/proc/$broker/status")" = "${user%%:*}" ] || fail "the broker does not run as $user"
  awk '/^VmRSS:/ {printf "== resident: %.1f MB\n", $2 / 1024}' "/proc/$broker/status"
  kill -TERM "$broker"
  local code=0
  wait "$supervisor" || code=$?
  supervisor=
  [ "$code" = 0 ] || fail "SIGTERM ended it with $code: $(tail -n 3 "$work/stderr")"
}

start
say "health check: ${health[*]}"
in_image "${health[@]}" || fail "the health check fails while the broker runs"
say "produce and consume"
seq 1000 | kcat -q -b "127.0.0.1:$port" -t numbers -P
[ "$(kcat -q -b "127.0.0.1:$port" -t numbers -C -e -o beginning | md5sum)" = "$(seq 1000 | md5sum)" ] || fail "not what was sent"
say "compiled modules"
in_image tidelog version | grep -x 'compiled: yes' >/dev/null || fail "the image was built without compiled modules"
say "SIGTERM to process 1"
stop
if in_image "${health[@]}" 2>/dev/null; then fail "the health check passes without a broker"; fi
say "start again on the same volume"
start
[ "$(kcat -q -b "127.0.0.1:$port" -t numbers -C -e -o beginning | wc -l)" = 1000 ] || fail "the data is gone after a restart"
stop
touch "$root/no" 2>/dev/null && fail "the root was not read-only"
# Testcontainers' modules: a shell waits for a script, which says what is advertised and calls the image's start script.
# They end a container by force.
given=(CLUSTER_ID=4L6g3nShT-eMCtK--X86sw "KAFKA_LISTENERS=PLAINTEXT://:$port,BROKER://:$((port + 1)),CONTROLLER://:9094"
  KAFKA_LISTENER_SECURITY_PROTOCOL_MAP=BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
  KAFKA_INTER_BROKER_LISTENER_NAME=BROKER KAFKA_PROCESS_ROLES=broker,controller KAFKA_CONTROLLER_LISTENER_NAMES=CONTROLLER
  KAFKA_NODE_ID=1 KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR=1 KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS=1
  KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS=0)
mount -t tmpfs -o mode=1777 tidelog-image "$root/tmp"
for script in /etc/kafka/docker/run /etc/confluent/docker/run; do
  say "as Testcontainers starts it, by $script"
  find "$data" -mindepth 1 -delete
  waits=/tmp/testcontainers_start.sh
  command=("${entrypoint[@]}" sh -c "while [ ! -f $waits ]; do sleep 0.1; done; $waits")
  printf '#!/bin/bash\nexport KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:%s,BROKER://127.0.0.1:%s\n%s\n' \
    "$port" "$((port + 1))" "$script" > "$root/tmp/script"
  chmod 777 "$root/tmp/script"
  (sleep 1; mv "$root/tmp/script" "$root$waits") &
  start
  grep 'Transitioning from RECOVERY to RUNNING' "$work/stderr" >/dev/null || fail "the log lacks the line that Testcontainers waits for"
  seq 1000 | kcat -q -b "127.0.0.1:$port" -t numbers -P
  [ "$(kcat -q -b "127.0.0.1:$port" -t numbers -C -e -o beginning | wc -l)" = 1000 ] || fail "not what was sent"
  end_by_force
  rm -f "$root$waits"
done
say "what takes the room, in MB"
(cd "$mounted" && du --max-depth=0 --block-size=1M usr/bin usr/lib/* usr/share var opt/tidelog/lib/python3*/site-packages/* 2>/dev/null) \
  | sort -rn | head -n 14
say "image checked: $("${buildah[@]}" images --format '{{.Size}}' "localhost/$image" | head -n 1)"
