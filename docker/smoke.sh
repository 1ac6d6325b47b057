#!/usr/bin/env bash
# Serves, produces and consumes with the tidelog on the PATH: 1,000 records in, the same 1,000 out, SIGTERM ends it with 0.
set -euo pipefail

data=$(mktemp -d)
tidelog serve --data-dir "$data/log" --port 0 > "$data/stdout" 2> "$data/stderr" &
broker=$!
trap 'kill "$broker" 2>/dev/null || true; rm -rf "$data"' EXIT
until grep -q '^tidelog ready on ' "$data/stdout"; do
  kill -0 "$broker" || { tail -n 3 "$data/stderr" >&2; exit 1; }
  sleep 0.1
done
export TIDELOG_BOOTSTRAP
TIDELOG_BOOTSTRAP=$(sed -n 's/^tidelog ready on //p' "$data/stdout")
tidelog topic create numbers --partitions 1 > "$data/created"
seq 1000 | tidelog produce numbers > "$data/produced"
[ "$(tidelog consume numbers --format value | md5sum)" = "$(seq 1000 | md5sum)" ] || { echo "not what was sent" >&2; exit 1; }
kill -TERM "$broker"
wait "$broker"
echo "served, produced, consumed: $(tidelog version | tr '\n' ' ')"
