#!/usr/bin/env bash
# Runs all Rust tests. Up to three tests that failed run a second time, alone; the run ends with a warning that names
# those that passed then: they depend on the load of the machine, and each is a fault to fix.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if cargo test --workspace --locked --no-fail-fast "$@" 2>&1 | tee "$log"; then
    exit 0
fi
# The names in the last list of each test program that failed, and the targets that cargo names.
mapfile -t names < <(awk '/^failures:$/ { last = "" } /^    [^ ]+$/ { last = last $1 "\n" } /^test result: FAILED/ { printf "%s", last; last = "" }' "$log" | sort -u)
mapfile -t targets < <(awk '/^error: [0-9]+ targets? failed:$/ { listed = 1; next } listed' "$log" | tr -d '`' | sort -u)
if [ "${#names[@]}" = 0 ] || [ "${#names[@]}" -gt 3 ] || [ "${#targets[@]}" = 0 ]; then
    exit 101
fi
echo "running again, alone: ${names[*]}" >&2
for target in "${targets[@]}"; do
    # The target is several words. A target without any of the names failed in another way.
    # shellcheck disable=SC2086
    cargo test --locked $target -- --exact --test-threads=1 "${names[@]}" 2>&1 | tee "$log"
    grep -q '^test result: ok\. [1-9]' "$log"
done
echo "WARNING: failed at first and passed alone, so not reliable: ${names[*]}" >&2
