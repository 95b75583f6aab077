#!/usr/bin/env bash
# Checks formatting and lints, then runs every test. Needs the Rust toolchain and a C compiler.
set -euo pipefail
cd "$(dirname "$0")"
. tools/need-compiler.sh
cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo test --workspace --locked
