#!/usr/bin/env bash
# Makes every artefact of a release from a program that is built already, and installs and runs each of them.
#
#   tools/test-dist.sh [--static] [PROGRAM]    without PROGRAM, the static build if it is there and newest, otherwise the debug build
#   tools/test-dist.sh [--static] --dist DIR   the files of a release as they are, instead of new ones
#
# With --static, and for a PROGRAM or a release of a musl target, a program that needs a library is an error.
# Skips with a message what this machine has no tools for.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '/^#   /s/^# *//p' "$0" >&2; exit 2; }
given='' program='' static=no
while [ $# -gt 0 ]; do
    case "$1" in
        --static) static=yes ;;
        --dist)
            [ $# -ge 2 ] || usage
            given=$2
            shift
            ;;
        -*) usage ;;
        *)
            [ -z "$program" ] || usage
            program=$1
            ;;
    esac
    shift
done
[ -z "$given" ] || [ -z "$program" ] || usage
# Nothing is compiled for a release that is there.
[ -n "$given" ] || . tools/need-compiler.sh

skip() { echo "skipped: $1" >&2; }
fail() { echo "test-dist: $1" >&2; exit 1; }
have() { command -v "$1" >/dev/null; }

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
work=$(mktemp -d)
chmod 755 "$work"
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

# A program that is accidentally linked to libraries of the build machine would otherwise skip the proofs of a static one.
case "$program" in *-linux-musl/*) static=yes ;; esac

dist=$work/dist
# The key of a release is elsewhere: install.sh is told of the one of this test, where the test has to sign.
signers=
ssh-keygen -q -t ed25519 -N '' -f "$work/key" || fail "ssh-keygen is needed to sign"
if [ -n "$given" ]; then
    [ -s "$given/SHA256SUMS" ] || fail "there is no release in $given"
    cp -r "$given" "$dist"
    if [ ! -f "$dist/SHA256SUMS.sig" ]; then
        ssh-keygen -q -Y sign -n exec-server -f "$work/key" "$dist/SHA256SUMS"
        echo "release namespaces=\"exec-server\" $(cut -d' ' -f1,2 "$work/key.pub")" >"$work/signers"
        signers=$work/signers
    fi
else
    if [ -z "$program" ]; then
        program=target/debug/exec-server
        [ -x "$program" ] || cargo build --quiet --locked -p exec-server
        for built in target/*-linux-musl/{release,debug}/exec-server; do
            [ "$built" -nt "$program" ] && "$built" --version >/dev/null 2>&1 && program=$built && static=yes
        done
    fi
    [ -x "$program" ] || fail "there is no program $program"
    if have strip; then
        strip -o "$work/exec-server" "$program"
    else
        cp "$program" "$work/exec-server"
    fi
    echo "releases are made of $program"

    # Two releases of one program, made with other settings at another place, are the same byte by byte.
    cargo xtask dist --fast --binary "$work/exec-server" --sign-key "$work/key" --out "$dist" >"$work/table" 2>"$work/log" ||
        { cat "$work/log" >&2; fail "cargo xtask dist failed"; }
    grep -q "is signed with" "$work/table" || fail "the table does not say that the release is signed"
    (umask 077 && TZ=Asia/Tokyo LC_ALL=C EXEC_SERVER_URL=ws://127.0.0.1:1 \
        cargo xtask dist --fast --binary "$work/exec-server" --sign-key "$work/key" --out "$work/again" >/dev/null 2>&1)
    diff -r "$dist" "$work/again" || fail "two releases of one program differ"
    rm -rf "$work/again"
    cargo xtask dist --fast --only installer --binary "$work/exec-server" --out "$work/unsigned" 2>/dev/null | grep -c "NOT signed" >/dev/null ||
        fail "an unsigned release does not say so"
    if cargo xtask dist --only installer --binary "$work/exec-server" --out tools 2>"$work/log"; then
        fail "dist emptied a directory that it did not make"
    fi
    if cargo xtask dist --only installer --binary Cargo.toml --out "$work/unsigned" 2>"$work/log"; then
        fail "dist packaged a file that is no program"
    fi
    grep -q "not a 64-bit program" "$work/log" || fail "dist does not say what is wrong with the program"
    echo "two releases of one program are identical"
fi
(cd "$dist" && sha256sum --quiet --check SHA256SUMS) || fail "SHA256SUMS does not fit the files"
[ "$(ls "$dist" | grep -cv '^SHA256SUMS')" = "$(wc -l <"$dist/SHA256SUMS")" ] || fail "SHA256SUMS does not list every file"

# The archives: all files, the same content in both, the program runs.
archive=$(cd "$dist" && ls exec-server-*-"$(uname -m)"-unknown-linux-*.tar.gz 2>/dev/null) || fail "the release has no archive for $(uname -m)"
archive=${archive%.tar.gz}
case "$archive" in *-linux-musl) static=yes ;; esac
mkdir "$work/gz"
tar -xzf "$dist/$archive.tar.gz" -C "$work/gz"
top=$work/gz/$archive
[ -z "$given" ] || cp "$top/exec-server" "$work/exec-server"
cmp -s "$top/exec-server" "$work/exec-server" || fail "the archive has another program"
is_static=no
if ldd "$work/exec-server" 2>&1 | grep -cE 'statically linked|not a dynamic executable' >/dev/null; then
    is_static=yes
elif [ "$static" = yes ]; then
    ldd "$work/exec-server" >&2 || true
    fail "the program is not static"
fi

# What `exec-server update --check` reads, by the program of the release.
"$work/exec-server" update --check --url "file://$dist" | grep -c "exec-server $version is current" >/dev/null ||
    fail "the program does not understand release.json"

[ "$("$top/exec-server" --version)" = "exec-server $version" ] || fail "the program of the archive is another version"
for file in LICENSE README.md THIRD-PARTY-LICENSES.txt docs/install.md man/man1/exec-server.1 man/man1/exec-server-run.1 \
    completions/exec-server.bash completions/_exec-server completions/exec-server.fish \
    usr/lib/systemd/system/exec-server.service usr/lib/sysusers.d/exec-server.conf; do
    [ -s "$top/$file" ] || fail "the archive has no $file"
done
[ "$(stat -c '%a %Y' "$top/exec-server")" = "755 $(stat -c %Y "$top/LICENSE")" ] || fail "the archive has a wrong mode or time"
if have zstd; then
    mkdir "$work/zst"
    zstd -dcq "$dist/$archive.tar.zst" | tar -xf - -C "$work/zst"
    diff -r "$work/gz" "$work/zst"
    rm -r "$work/zst"
else
    skip "the .tar.zst, because zstd is not installed"
fi
if have man; then
    man --warnings -l "$top/man/man1/exec-server-run.1" 2>"$work/log" | grep -c "Run a command on a server" >/dev/null || fail "the man page is empty"
    [ ! -s "$work/log" ] || { cat "$work/log" >&2; fail "the man page has errors"; }
else
    skip "the rendered man pages, because man is not installed"
fi
bash -n "$top/completions/exec-server.bash"
echo "the archives have everything, and the program runs"

# install.sh and the Debian package, in a root of their own.
if unshare --mount true 2>/dev/null; then
    unshare --mount tools/test-dist-root.sh "$dist" "$work" "$version" "$signers"
elif unshare --map-root-user --mount true 2>/dev/null; then
    unshare --map-root-user --mount tools/test-dist-root.sh "$dist" "$work" "$version" "$signers"
else
    skip "install.sh and the .deb, because this user can make no mount namespace"
fi

# npm: both packages from files, the launcher passes on streams, exit code and signals.
if have npm; then
    mkdir "$work/npm"
    (
        cd "$work/npm"
        export npm_config_cache=$work/npm-cache npm_config_update_notifier=false
        npm install --loglevel=error --offline --no-audit --no-fund "$dist/exec-server-linux-$(node -p process.arch)-$version.tgz" "$dist/exec-server-$version.tgz" >/dev/null
        [ "$(npx --loglevel=error --no-install exec-server --version)" = "exec-server $version" ]
        code=0
        ./node_modules/.bin/exec-server completions no-such-shell 2>/dev/null || code=$?
        [ "$code" = 2 ]
    ) || fail "the npm packages do not work"
    coproc "$work/npm/node_modules/.bin/exec-server" --listen ws://127.0.0.1:0 --state-dir "$work/state" 2>"$work/log"
    server=$COPROC_PID
    read -r url <&"${COPROC[0]}" || { cat "$work/log" >&2; fail "the server of the npm package did not start"; }
    [ "$(echo piped | "$work/npm/node_modules/.bin/exec-server" run "$url" -- cat)" = piped ] || fail "stdin did not reach the program of the npm package"
    kill -TERM "$server"
    wait "$server" || fail "the npm package did not pass on SIGTERM"
    server=
    rm -r "$work/npm/node_modules/@exec-server"
    if "$work/npm/node_modules/.bin/exec-server" --version 2>"$work/log"; then fail "the launcher started without a program"; fi
    grep -q "is not installed" "$work/log" || fail "the launcher does not say what is missing"
    echo "the npm packages work"
else
    skip "the npm packages, because npm is not installed (Debian: apt-get install npm)"
fi

# What only needs Python to look into.
if have python3; then
    python3 tools/check-dist.py "$dist" "$version" "$work/rootfs"
    if python3 -m venv "$work/venv" 2>/dev/null; then
        "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps "$dist"/*"$(uname -m)".whl
        [ "$("$work/venv/bin/exec-server" --version)" = "exec-server $version" ] || fail "the program of the wheel is another version"
        if "$work/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r sdk/python/tests/requirements/runtime.txt 2>/dev/null; then
            # The first example of the README, with the program inside the wheel.
            sed -n '/^```python/,/^```$/p' sdk/python/README.md | sed '/^```/d' |
                env -u EXEC_SERVER_BIN -u PYTHONPATH "$work/venv/bin/python" - | grep -c Linux >/dev/null || fail "the example of the README fails with the wheel"
        else
            skip "the SDK in the wheel, because its dependencies cannot be installed (no package registry?)"
        fi
        echo "the wheel works in a clean environment"
    else
        skip "the installed wheel, because Python has no venv (Debian: apt-get install python3-venv)"
    fi
else
    skip "image, wheel, bill of materials, because python3 is not installed"
fi

# A static program needs nothing: it serves and runs itself in an empty root.
if [ "$is_static" = yes ]; then
    mkdir -p "$work/empty/tmp"
    cp "$work/exec-server" "$work/empty/"
    enter=(chroot)
    [ "$(id -u)" = 0 ] || enter=(unshare --map-root-user chroot)
    "${enter[@]}" "$work/empty" /exec-server --version >/dev/null || fail "the static program does not start in an empty root"
    if have python3; then
        [ "$("${enter[@]}" "$work/rootfs" /usr/bin/exec-server --version)" = "exec-server $version" ] || fail "the image does not run"
        coproc "${enter[@]}" "$work/rootfs" /usr/bin/exec-server rendezvous --data /tmp/relay --listen http://127.0.0.1:0 2>"$work/log"
        server=$COPROC_PID
        read -r url <&"${COPROC[0]}" || { cat "$work/log" >&2; fail "the relay of the image did not start"; }
        kill -TERM "$server"
        wait "$server" || fail "the relay of the image did not end on SIGTERM"
        server=
    fi
    echo "the static program runs in an empty root"
else
    skip "the proofs of a static program: this one is not (cargo xtask dist --fetch, then cargo xtask dist)"
fi

# Licences and sources of dependencies; advisories where their database was fetched before.
if cargo deny --version >/dev/null 2>&1; then
    cargo deny --offline check licenses bans sources 2>"$work/log" || { cat "$work/log" >&2; fail "cargo deny found something"; }
    if ls -d "${CARGO_HOME:-$HOME/.cargo}"/advisory-db* >/dev/null 2>&1; then
        cargo deny --offline check advisories 2>"$work/log" || { cat "$work/log" >&2; fail "a dependency has an advisory"; }
    else
        skip "advisories, because their database is not here (cargo deny fetch)"
    fi
else
    skip "cargo deny, because it is not installed (cargo install --locked cargo-deny)"
fi
echo "every artefact was tested"
