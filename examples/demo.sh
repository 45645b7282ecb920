#!/usr/bin/env bash
# What a user sees of one incident: `make demo` runs this. DATABASE is made anew; SICKBAY names the console script.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
database=${1:?usage: demo.sh DATABASE}
sickbay=${SICKBAY:-sickbay}
device=dra:gpu.nvidia.com/gpu-a1/gpu-3

show() {
    printf '\n$ sickbay %s\n' "$*"
    "$sickbay" "$@"
}

mkdir -p "$(dirname "$database")"
rm -f "$database" "$database-wal" "$database-shm"

show replay examples/one-card.jsonl.zst --db "$database"
show episodes --db "$database"
show timeline "$device" --db "$database"
show explain last --db "$database"
show verify --db "$database"
show what-if examples/one-card.jsonl.zst --policy examples/policies/stricter.yaml
