#!/usr/bin/env bash
# Checks formatting and lints, then runs every test. Needs the Rust toolchain and a C compiler; says so if one is missing.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v cargo >/dev/null; then
    echo "test.sh: cargo is not installed; get the Rust toolchain with rustup first" >&2
    exit 1
fi
if ! command -v cc >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq build-essential
    else
        echo "test.sh: a C compiler is needed; on Debian: sudo apt-get install build-essential" >&2
        exit 1
    fi
fi

cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo test --workspace --locked
