#!/usr/bin/env bash
# Builds the server and starts it; arguments go to the server. Needs the Rust toolchain and a C compiler.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
. "$here/tools/need-compiler.sh"
cargo build --release --locked --manifest-path "$here/Cargo.toml" -p exec-server
if [ -t 1 ] && [ -t 2 ]; then
    echo "Documentation: $here/README.md and $here/docs/" >&2
fi
exec "${CARGO_TARGET_DIR:-$here/target}/release/exec-server" "$@"
