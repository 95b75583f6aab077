#!/usr/bin/env bash
# Checks formatting, lints and documentation, then runs every test, and the attacks on the sandbox also as another user. Needs the Rust toolchain and a C compiler.
set -euo pipefail
cd "$(dirname "$0")"
. tools/need-compiler.sh
. tools/need-engines.sh
if [ -n "$missing_engines" ]; then
    echo "tests of a rendezvous cluster are skipped; on Debian and Ubuntu: sudo apt-get install$missing_engines" >&2
fi
# What is set for real servers is not meant for the tests; these variables are.
for name in "${!EXEC_SERVER_@}" "${!CODEX_@}"; do
    case "$name" in
        EXEC_SERVER_REFERENCE_BIN | EXEC_SERVER_TEST_URL) ;;
        EXEC_SERVER_TEST_CHAOS_SECONDS | EXEC_SERVER_TEST_LONG) ;;
        *) unset "$name" ;;
    esac
done
cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
# The same code as on other platforms, whose compilers need not be installed.
RUSTC_WORKSPACE_WRAPPER="$PWD/tools/as-other-platform.sh" cargo check --locked -p exec-server
# A browser harness uses the pure part of the relay: it must build without C code and sockets, and its cipher must work.
if rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then
    cargo check --locked --target wasm32-unknown-unknown -p exec-server-relay --no-default-features
else
    echo "the build for browsers is skipped: rustup target add wasm32-unknown-unknown"
fi
cargo test --locked -p exec-server-relay --no-default-features --features portable-crypto --lib
if command -v typos >/dev/null; then
    typos
else
    echo "spelling is not checked: pip install typos, or cargo install typos-cli"
fi
tools/test-rust.sh
tools/test-as-user.sh
tools/test-python.sh
tools/test-dist.sh
# The seeds were replayed above; new inputs are looked for where a fuzzer is installed.
if cargo +nightly fuzz --version >/dev/null 2>&1; then
    cargo xtask fuzz --seconds 5
else
    echo "fuzzing skipped: no nightly toolchain with cargo-fuzz (cargo xtask fuzz works without)"
fi
