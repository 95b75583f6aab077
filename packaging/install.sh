#!/bin/sh
# Installs exec-server from a release: picks the archive for this machine, verifies it, and copies its files.
# Works in every POSIX shell; `sh install.sh --help` lists the options.
set -eu

# `cargo xtask dist` fills these in.
release_version='@VERSION@'
release_url='@RELEASE_URL@'
release_signers='@SIGNERS@'

usage() {
    cat <<'HELP'
Install exec-server: the program, its man pages and shell completions.

Usage: install.sh [OPTIONS]

Options:
  --from URL|DIR        Take the release from this address or directory, which has SHA256SUMS and the archives
  --version VERSION     Install this version
  --prefix DIR          Install below DIR; default: /usr/local for root, ~/.local for other users
  --signers FILE        Require a signature by a key of this file (allowed signers of ssh-keygen)
  --require-signature   Fail if the signature cannot be checked
  --uninstall           Remove the files that this script installs
  --dry-run             Print what would be done
  -h, --help            Print this text
HELP
}

say() { printf '%s\n' "$*"; }
warn() { printf 'install.sh: %s\n' "$*" >&2; }
fail() {
    warn "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

main() {
    from='' version='' prefix='' signers_file='' require_signature=no dry_run=no uninstall=no
    while [ $# -gt 0 ]; do
        case "$1" in
            --from | --version | --prefix | --signers)
                [ $# -ge 2 ] && [ -n "$2" ] || fail "$1 needs a value"
                ;;
        esac
        case "$1" in
            --from) from=$2; shift ;;
            --version) version=$2; shift ;;
            --prefix) prefix=$2; shift ;;
            --signers) signers_file=$2; shift ;;
            --require-signature) require_signature=yes ;;
            --uninstall) uninstall=yes ;;
            --dry-run) dry_run=yes ;;
            -h | --help) usage; exit 0 ;;
            *) fail "unknown option $1; --help lists the options" ;;
        esac
        shift
    done
    choose_prefix
    if [ "$uninstall" = yes ]; then
        remove_files
        exit 0
    fi
    choose_platform
    choose_source
    if [ "$dry_run" = yes ]; then
        say "would install exec-server${version:+ $version} for $arch"
        say "from: $from"
        say "into: $prefix/bin/exec-server, $prefix/share/man/man1, completions in $prefix/share"
        exit 0
    fi
    for tool in tar mktemp; do
        have "$tool" || fail "$tool is needed, and is not installed"
    done
    work=$(mktemp -d) || fail "cannot make a temporary directory"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    fetch SHA256SUMS
    check_signature
    choose_archive
    fetch "$archive"
    check_sum "$archive"
    unpack
    install_files
    say_what_next
}

choose_prefix() {
    if [ -z "$prefix" ]; then
        if [ "$(id -u)" = 0 ]; then
            prefix=/usr/local
        else
            [ -n "${HOME:-}" ] || fail "HOME is not set; use --prefix DIR"
            prefix=$HOME/.local
        fi
    fi
    case "$prefix" in
        /*) ;;
        *) prefix=$PWD/$prefix ;;
    esac
}

choose_platform() {
    system=$(uname -s)
    [ "$system" = Linux ] || fail "there are no programs for $system; exec-server runs on Linux"
    case "$(uname -m)" in
        x86_64 | amd64) arch=x86_64 ;;
        aarch64 | arm64) arch=aarch64 ;;
        *) fail "there are no programs for $(uname -m); build from source as README.md says" ;;
    esac
}

choose_source() {
    case "$release_version" in
        @*) release_version= ;;
    esac
    case "$release_url" in
        @*) release_url= ;;
    esac
    case "$release_signers" in
        @*) release_signers= ;;
    esac
    case "$version" in
        *[!0-9A-Za-z.+-]*) fail "$version is no version" ;;
        v*) version=${version#v} ;;
    esac
    if [ -z "$from" ]; then
        [ -n "$release_url" ] || fail "this copy has no download address; use --from URL or --from DIR"
        version=${version:-$release_version}
        from=$(printf '%s' "$release_url" | sed "s/{version}/$version/g")
    fi
    case "$from" in
        http://* | https://* | file://*)
            from=${from%/}
            have curl || have wget || fail "curl or wget is needed, or download the release and use --from DIR"
            ;;
        *://*) fail "cannot download from $from; use http://, https://, file:// or a directory" ;;
        *) [ -d "$from" ] || fail "there is no directory $from" ;;
    esac
}

# Copies one file of the release to the temporary directory.
fetch() {
    case "$from" in
        http://* | https://* | file://*)
            say "downloading $from/$1"
            if have curl; then
                curl -fsSL --retry 3 -o "$work/$1" "$from/$1"
            else
                wget -q -O "$work/$1" "$from/$1"
            fi || { rm -f "$work/$1"; [ "${2:-}" = optional ] || fail "cannot download $from/$1"; return 1; }
            ;;
        *)
            if [ ! -f "$from/$1" ]; then
                [ "${2:-}" = optional ] || fail "there is no file $from/$1"
                return 1
            fi
            cp "$from/$1" "$work/$1" || fail "cannot read $from/$1"
            ;;
    esac
}

# A release that names its signers must be signed by one of them.
check_signature() {
    if [ -n "$signers_file" ]; then
        [ -f "$signers_file" ] || fail "there is no file $signers_file"
        cp "$signers_file" "$work/signers" || fail "cannot read $signers_file"
        require_signature=yes
    elif [ -n "$release_signers" ]; then
        printf '%s\n' "$release_signers" >"$work/signers"
    elif [ "$require_signature" = yes ]; then
        fail "the key of the release is not known; name it with --signers FILE"
    else
        say "this release is not signed; only checksums are verified"
        return 0
    fi
    fetch SHA256SUMS.sig optional || fail "the release has no signature (SHA256SUMS.sig); nothing was installed"
    if ! have ssh-keygen; then
        [ "$require_signature" = no ] || fail "ssh-keygen is needed to verify the signature, and is not installed"
        warn "the signature is not verified, because ssh-keygen is not installed; checksums are"
        return 0
    fi
    ssh-keygen -Y verify -f "$work/signers" -I release -n exec-server -s "$work/SHA256SUMS.sig" \
        <"$work/SHA256SUMS" >"$work/signature" 2>&1 ||
        fail "the signature of SHA256SUMS is wrong; nothing was installed"
    say "verified the signature"
}

# The archive of the wanted version that this machine can unpack, as SHA256SUMS lists it.
choose_archive() {
    formats=tar.gz
    if have zstd; then
        formats='tar.zst tar.gz'
    fi
    archive=
    for libc in musl gnu; do
        for format in $formats; do
            [ -z "$archive" ] || continue
            archive=$(sed -n "s/^[0-9a-f]\{64\} [ *]\(exec-server-[0-9A-Za-z.+-]*-$arch-unknown-linux-$libc\.$format\)\$/\1/p" \
                "$work/SHA256SUMS" | head -n 1)
        done
    done
    [ -n "$archive" ] || fail "the release at $from has no archive for $arch"
    found=${archive#exec-server-}
    found=${found%-"$arch"-unknown-linux-*}
    if [ -n "$version" ] && [ "$version" != "$found" ]; then
        fail "the release at $from is version $found, not $version"
    fi
    version=$found
}

check_sum() {
    expected=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]$1\$/\1/p" "$work/SHA256SUMS" | head -n 1)
    if have sha256sum; then
        actual=$(sha256sum "$work/$1")
    elif have shasum; then
        actual=$(shasum -a 256 "$work/$1")
    elif have openssl; then
        actual=$(openssl dgst -sha256 -r "$work/$1")
    else
        fail "sha256sum, shasum or openssl is needed to verify the download"
    fi
    actual=${actual%% *}
    [ -n "$expected" ] && [ "$actual" = "$expected" ] ||
        fail "$1 is damaged: its SHA-256 is $actual, not $expected; nothing was installed"
    say "verified the checksum of $1"
}

unpack() {
    mkdir "$work/unpacked"
    case "$archive" in
        *.zst) zstd -dcq "$work/$archive" >"$work/archive.tar" || fail "cannot unpack $archive" ;;
        *) gzip -dc "$work/$archive" >"$work/archive.tar" || fail "cannot unpack $archive" ;;
    esac
    tar -xf "$work/archive.tar" -C "$work/unpacked" || fail "cannot unpack $archive"
    release=$work/unpacked/${archive%.tar.*}
    [ -f "$release/exec-server" ] || fail "$archive has no program"
    "$release/exec-server" --version >"$work/version" 2>&1 ||
        fail "the program does not run on this machine: $(cat "$work/version")"
}

# SOURCE DESTINATION MODE: replaces a file in one step, so that a running program is not disturbed.
place() {
    directory=${2%/*}
    mkdir -p "$directory" || fail "cannot make $directory; choose another place with --prefix"
    if ! { cp "$1" "$2.new.$$" && chmod "$3" "$2.new.$$" && mv -f "$2.new.$$" "$2"; }; then
        rm -f "$2.new.$$"
        fail "cannot write $2; choose another place with --prefix"
    fi
}

install_files() {
    for page in "$release"/man/man1/*.1; do
        place "$page" "$prefix/share/man/man1/${page##*/}" 644
    done
    place "$release/completions/exec-server.bash" "$prefix/share/bash-completion/completions/exec-server" 644
    place "$release/completions/_exec-server" "$prefix/share/zsh/site-functions/_exec-server" 644
    place "$release/completions/exec-server.fish" "$prefix/share/fish/vendor_completions.d/exec-server.fish" 644
    place "$release/exec-server" "$prefix/bin/exec-server" 755
}

remove_files() {
    for file in "$prefix/bin/exec-server" "$prefix"/share/man/man1/exec-server.1 "$prefix"/share/man/man1/exec-server-*.1 \
        "$prefix/share/bash-completion/completions/exec-server" "$prefix/share/zsh/site-functions/_exec-server" \
        "$prefix/share/fish/vendor_completions.d/exec-server.fish"; do
        [ -f "$file" ] || continue
        if [ "$dry_run" = yes ]; then
            say "would remove $file"
        else
            rm -f "$file" || fail "cannot remove $file"
        fi
    done
    [ "$dry_run" = yes ] || say "removed exec-server from $prefix"
}

say_what_next() {
    say "installed exec-server $version as $prefix/bin/exec-server"
    case ":$PATH:" in
        *":$prefix/bin:"*) ;;
        *) say "add it to the path:  export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
    say "next:"
    say "  exec-server doctor                                  # what this machine can enforce"
    say "  exec-server --listen ws://127.0.0.1:7777            # start a server"
    say "  EXEC_SERVER_URL=ws://127.0.0.1:7777 exec-server run -- uname -a      # in a second terminal"
}

main "$@"
