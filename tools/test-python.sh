#!/usr/bin/env bash
# Tests the Python SDK against the debug server: types, the generated half, every feature on asyncio, trio and threads,
# the suites of the frameworks that it fits, and `exec-server e2b` with the SDKs of E2B. Skips with a message where Python or the package registry is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
sdk=sdk/python

skip() {
    echo "the Python SDK was not tested: $1" >&2
    exit 0
}

# Whether an interpreter can make virtual environments and is one that the SDK supports.
is_usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

# The interpreter of a version, also one of pyenv that is not selected.
find_python() {
    local candidate
    for candidate in "$(command -v "python3.$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$1".*/bin/python3; do
        if [ -x "$candidate" ] && is_usable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

python=$(command -v python3 || true)
if [ -z "$python" ] || ! is_usable "$python"; then
    python=$(find_python 13 || find_python 12 || find_python 11 || find_python 10) || skip "no Python of version 3.10 or newer with venv"
fi
minor_of() {
    "$1" -c 'import sys; print(sys.version_info[1])'
}
minor=$(minor_of "$python")

# The tests of the crates have built it; other features than theirs would mean a second build of everything.
[ -x target/debug/exec-server ] || cargo build --quiet --locked -p exec-server
export EXEC_SERVER_BIN="$PWD/target/debug/exec-server"

# A virtual environment per lock file; it is made again when the lock file changes.
venv() {
    local lock=$sdk/tests/requirements/$1.txt python=${2:-$python}
    local place
    place=target/python/$1-$(sha256sum "$lock" | cut -c 1-12)-3.$(minor_of "$python")
    if [ ! -e "$place/complete" ]; then
        rm -rf "$place"
        mkdir -p target/python
        "$python" -m venv "$place" || return 1
        "$place/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$lock" >&2 || return 1
        touch "$place/complete"
    fi
    echo "$PWD/$place"
}

# A place of its own, so that two runs do not remove each other's files.
temporary=$(mktemp -d)
cache=$(mktemp -d)
chmod 755 "$temporary"
trap 'rm -rf "$temporary" "$cache"' EXIT

# Runs tests with the given Python. Up to three that fail run a second time, alone, as in test-rust.sh.
run_pytest() {
    local run=("$1" -m pytest -q --basetemp "$temporary" -o "cache_dir=$cache" "${@:2}")
    local record=$cache/v/cache/lastfailed code=0 failed
    # A crash leaves no record, and that of an earlier run names other tests.
    rm -f "$record"
    (cd $sdk && PYTHONPATH=src "${run[@]}") || code=$?
    [ "$code" != 0 ] || return 0
    failed=$("$1" -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' "$record" 2>/dev/null) || failed=0
    # Any other code than 1 is an end before the last test.
    if [ "$code" != 1 ] || [ "$failed" = 0 ] || [ "$failed" -gt 3 ]; then
        return "$code"
    fi
    echo "running the failed tests again, alone" >&2
    (cd $sdk && PYTHONPATH=src "${run[@]}" --last-failed) || return
    echo "WARNING: Python tests failed at first and passed alone, so they are not reliable; see above" >&2
}

core=$(venv core) || skip "its test packages cannot be installed (no package registry?)"
"$core/bin/python" $sdk/tools/unasync.py --check
if command -v node >/dev/null; then
    (cd $sdk && "$core/bin/pyright" --pythonpath "$core/bin/python")
    # The configuration names the oldest version; this is the newest.
    (cd $sdk && "$core/bin/pyright" --pythonpath "$core/bin/python" --pythonversion 3.13)
else
    echo "the types of the Python SDK were not checked: no node" >&2
fi
run_pytest "$core/bin/python" tests

# The ends of what is supported, without the hundreds of cuts and the examples, which do not depend on the interpreter.
for other in 10 13; do
    [ "$other" != "$minor" ] || continue
    if found=$(find_python "$other") && place=$(venv core "$found"); then
        echo "Python 3.$other"
        run_pytest "$place/bin/python" tests -k "not chaos and not examples"
    else
        echo "Python 3.$other was not tested: it is not here, or its packages cannot be installed" >&2
    fi
done

# Foreign suites, each with its own packages.
suite() {
    local place
    place=$(venv "$1") || { echo "the suite of $1 was not run: its packages cannot be installed" >&2; return 0; }
    # An adapter extends classes of its framework, so that its types are checked where that is installed.
    if [ -e "$sdk/tools/pyright/$1.json" ] && command -v node >/dev/null; then
        (cd $sdk && "$core/bin/pyright" -p "tools/pyright/$1.json" --pythonpath "$place/bin/python")
    fi
    run_pytest "$place/bin/python" -W default "${@:2}"
}
suite fsspec tests/adapters/test_fsspec.py
suite openai-agents -o asyncio_mode=auto tests/adapters/test_openai_agents.py
# The packages of the TypeScript SDK that the facade is tested with.
node_packages() {
    local from=$sdk/tests/adapters/e2b
    local place=target/node/e2b-$(sha256sum "$from/package-lock.json" | cut -c 1-12)
    command -v npm >/dev/null || return 1
    if [ ! -e "$place/complete" ]; then
        rm -rf "$place"
        mkdir -p "$place"
        cp "$from/package.json" "$from/package-lock.json" "$place"
        (cd "$place" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2) || return 1
        touch "$place/complete"
    fi
    cp "$from/sdk.test.mjs" "$place"
    echo "$PWD/$place"
}

if [ "$minor" -ge 11 ]; then
    E2B_NODE_PACKAGES=$(node_packages) || echo "the TypeScript SDK of E2B was not tested: its packages cannot be installed" >&2
    export E2B_NODE_PACKAGES
    suite e2b -o asyncio_mode=auto tests/adapters/test_e2b.py
    suite inspect -o asyncio_mode=auto tests/adapters/test_inspect.py
    suite deepagents-0.6 -o asyncio_mode=auto tests/adapters/test_deepagents.py
    suite deepagents -o asyncio_mode=auto tests/adapters/test_deepagents.py
else
    echo "the suites of inspect, deepagents and e2b were not run: they need Python 3.11" >&2
fi

# The wheel with the debug program, in an environment that has nothing else.
wheels=$PWD/target/python/wheels
if build=$(venv wheel) && clean=$(venv runtime); then
    rm -rf "$wheels"
    (cd $sdk && "$build/bin/maturin" build --compatibility linux --out "$wheels" >/dev/null 2>"$wheels.log") || { cat "$wheels.log" >&2; exit 1; }
    (cd $sdk && "$build/bin/maturin" sdist --out "$wheels" >/dev/null 2>"$wheels.log") || { cat "$wheels.log" >&2; exit 1; }
    "$clean/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$wheels"/*.whl
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    (
        unset EXEC_SERVER_BIN PYTHONPATH
        cd "$wheels"
        [ "$("$clean/bin/exec-server" --version)" = "exec-server $version" ]
        [ "$("$clean/bin/python" -c 'import exec_server; print(exec_server.__version__)')" = "$version" ]
        # Frameworks find the adapters by these.
        points='from importlib.metadata import entry_points as found; print(*(p.value for g in ("fsspec.specs", "inspect_ai") for p in found(group=g)))'
        [ "$("$clean/bin/python" -c "$points")" = "exec_server.fsspec:ExecServerFileSystem exec_server.inspect" ]
        # The first example of the README.
        sed -n '/^```python/,/^```$/p' "$OLDPWD/$sdk/README.md" | sed '/^```/d' | "$clean/bin/python" - | grep -c Linux >/dev/null
        # The source archive has every crate that it needs. Its lock file still has the dependencies of the project's own
        # commands; cargo drops these and must change no version.
        tar -xzf ./*.tar.gz
        cp exec_server-*/Cargo.lock lock.before
        cargo metadata --offline --format-version 1 --manifest-path exec_server-*/crates/exec-server/Cargo.toml >/dev/null
        if diff lock.before exec_server-*/Cargo.lock | grep '^> *\(version\|checksum\)'; then
            echo "the lock file of the source archive does not fit its crates" >&2
            exit 1
        fi
    )
    echo "the wheel works in a clean environment"
else
    echo "the wheel was not tested: its packages cannot be installed" >&2
fi
