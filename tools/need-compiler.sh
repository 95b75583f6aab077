# Sourced by run.sh and test.sh: makes sure that cargo and a C compiler are there, or says how to get them.
if ! command -v cargo >/dev/null && [ -f "$HOME/.cargo/env" ]; then
    . "$HOME/.cargo/env"
fi
if ! command -v cargo >/dev/null; then
    echo "cargo is not installed; get the Rust toolchain with rustup first (https://rustup.rs)" >&2
    exit 1
fi
if ! command -v cc >/dev/null; then
    reason="a C compiler is needed (for the TLS library)"
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "$reason; on Debian and Ubuntu: sudo apt-get install build-essential" >&2
        exit 1
    fi
    if [ -t 0 ] && [ -t 2 ]; then
        read -r -p "$reason. Install build-essential with apt-get now? [y/N] " answer || answer=
        case "$answer" in
            [yY]*) ;;
            *)
                echo "nothing was installed; run: apt-get install build-essential" >&2
                exit 1
                ;;
        esac
    else
        echo "$reason; installing build-essential with apt-get" >&2
    fi
    apt-get update -qq && apt-get install -y -qq build-essential
fi
