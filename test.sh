#!/usr/bin/env bash
# Checks formatting, lints and documentation, then runs every test. Needs the Rust toolchain and a C compiler.
set -euo pipefail
cd "$(dirname "$0")"
. tools/need-compiler.sh
cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
cargo test --workspace --locked
