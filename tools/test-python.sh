#!/usr/bin/env bash
# Tests the Python SDK against the debug server: types, the generated half, every feature on asyncio, trio and threads,
# and the suites of the frameworks that it fits. Skips with a message where Python or the package registry is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
sdk=sdk/python

skip() {
    echo "the Python SDK was not tested: $1" >&2
    exit 0
}

python=
for name in python3 python3.13 python3.12 python3.11 python3.10; do
    if command -v "$name" >/dev/null &&
        "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        python=$(command -v "$name")
        break
    fi
done
[ -n "$python" ] || skip "no Python of version 3.10 or newer with venv"

# The tests of the crates have built it; other features than theirs would mean a second build of everything.
[ -x target/debug/exec-server ] || cargo build --quiet --locked -p exec-server
export EXEC_SERVER_BIN="$PWD/target/debug/exec-server"

# A virtual environment per lock file; it is made again when the lock file changes.
venv() {
    local lock=$sdk/tests/requirements/$1.txt
    local place=target/python/$1-$(sha256sum "$lock" | cut -c 1-12)-$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")')
    if [ ! -e "$place/complete" ]; then
        rm -rf "$place"
        mkdir -p target/python
        "$python" -m venv "$place" || return 1
        "$place/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$lock" >&2 || return 1
        touch "$place/complete"
    fi
    echo "$PWD/$place"
}

core=$(venv core) || skip "its test packages cannot be installed (no package registry?)"
"$core/bin/python" $sdk/tools/unasync.py --check
if command -v node >/dev/null; then
    (cd $sdk && "$core/bin/pyright" --pythonpath "$core/bin/python")
else
    echo "the types of the Python SDK were not checked: no node" >&2
fi
(cd $sdk && PYTHONPATH=src "$core/bin/python" -m pytest -q -p no:cacheprovider tests)
