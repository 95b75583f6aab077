# Sourced by run.sh and test.sh: makes sure that cargo and a C compiler are there, or says how to get them.
if ! command -v cargo >/dev/null && [ -f "$HOME/.cargo/env" ]; then
    . "$HOME/.cargo/env"
fi
if ! command -v cargo >/dev/null; then
    echo "cargo is not installed; get the Rust toolchain with rustup first" >&2
    exit 1
fi
if ! command -v cc >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq build-essential
    else
        echo "a C compiler is needed (for the TLS library); on Debian: sudo apt-get install build-essential" >&2
        exit 1
    fi
fi
