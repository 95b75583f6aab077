#!/usr/bin/env bash
# Called by test-dist.sh in a mount namespace: installs a release by install.sh and by dpkg into a root of its own.
# The root has the programs of this machine under an overlay, so that what an installation adds can be listed.
set -euo pipefail
# chroot and dpkg's helpers are there, also for users whose path ends before.
PATH=$PATH:/usr/sbin:/sbin
dist=$1 work=$2 version=$3 signers=$4

skip() { echo "skipped: $1" >&2; }
fail() { echo "test-dist: $1" >&2; exit 1; }

mount --make-rprivate /
root=$work/root
layers=$work/layers
mkdir -p "$root" "$layers"
mount -t tmpfs tmpfs "$layers"
mkdir "$layers/usr" "$layers/work"
mkdir -p "$root"/{usr,etc,dev,proc,tmp,home/user,root,run,var/lib/dpkg/{info,updates,triggers},var/log,release}
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$layers/usr,workdir=$layers/work" "$root/usr" 2>/dev/null || {
    skip "install.sh and the .deb, because this kernel has no overlay file system for this user"
    exit 0
}
for name in bin sbin lib lib32 lib64; do
    if [ -L "/$name" ]; then
        ln -s "$(readlink "/$name")" "$root/$name"
    elif [ -d "/$name" ]; then
        mkdir "$root/$name"
        mount --bind "/$name" "$root/$name"
    fi
done
touch "$root/dev/null" "$root/dev/urandom" "$root/var/lib/dpkg/status" "$root/var/lib/dpkg/available"
for device in null urandom; do
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount --bind "$dist" "$root/release"
mount --bind /proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc"
printf 'root:x:0:0::/root:/bin/sh\nuser:x:65534:65534::/home/user:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\nuser:x:65534:\n' >"$root/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files\n' >"$root/etc/nsswitch.conf"
chmod 1777 "$root/tmp"
# A release that is not signed yet has a signature by the test.
trusted=()
if [ -n "$signers" ]; then
    cp "$signers" "$root/etc/signers"
    trusted=(--signers /etc/signers)
fi
cp "$root/etc/passwd" "$work/passwd"

# Files that are not on this machine; dpkg and ldconfig may leave empty directories.
added() { find "$layers/usr" ! -type d ! -type c | sed "s|^$layers||" | sort; }
inside() { chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
as_user() { chroot --userspec=65534:65534 --groups= "$root" /usr/bin/env -i HOME=/home/user PATH=/usr/bin:/bin "$@"; }
refused() {
    local reason=$1
    shift
    if inside sh /release/install.sh "${trusted[@]}" "$@" >"$work/log" 2>&1; then fail "install.sh accepted: $reason"; fi
    grep -q -- "$reason" "$work/log" || { cat "$work/log" >&2; fail "install.sh does not say: $reason"; }
    [ -z "$(added)" ] || { added >&2; fail "install.sh installed something, although $reason"; }
}

# Types the quick start of the README, with nothing but what install.sh installed, where there is no network but `lo`.
# A root by pivot_root, because the kernel lets no process make a sandbox below chroot.
quick_start() {
    local section ready line
    if ! command -v ip >/dev/null && ! command -v python3 >/dev/null; then
        skip "the quick start of the README, because neither ip nor python3 can start a loopback device"
        return
    fi
    section=$(sed -n '/^## Quick start/,/^## /p' "$work"/gz/*/README.md)
    sed -n '/^```console/,/^```$/p' <<<"$section" | sed '/^```/d' >"$work/expected"
    [ "$(grep -c '^\$ ' "$work/expected")" -ge 3 ] || fail "the README has no quick start"
    {
        echo "coproc $(grep -m 1 '^exec-server --listen' <<<"$section")"
        echo 'server=$COPROC_PID; trap "kill $server" EXIT; read -r ready <&"${COPROC[0]}"; exec 2>&1'
        while IFS= read -r line; do
            case "$line" in
                '$ '*) printf 'printf "%%s\\n" %q\n%s\n' "$line" "${line#'$ '}" ;;
            esac
        done <"$work/expected"
    } >"$root/tmp/quick-start.sh"
    unshare --mount --net bash -euc '
        ip link set lo up 2>/dev/null || python3 -c "
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack(\"16sh14x\", b\"lo\", 1))"
        mount --rbind "$0" "$0"
        cd "$0"
        pivot_root . .
        umount -l .
        exec setpriv "$@" env -i HOME=/home/user PATH=/home/user/.local/bin:/usr/bin:/bin bash -c "cd && exec bash /tmp/quick-start.sh"
    ' "$root" "${identity[@]}" >"$work/actual" 2>"$work/log" || { cat "$work/actual" "$work/log" >&2; fail "the quick start of the README failed"; }
    diff "$work/expected" "$work/actual" || { cat "$work/log" >&2; fail "the quick start prints something else than the README says"; }
    ready=$((($(date +%s%N) - started) / 1000000))
    echo "the quick start of the README works without a network; with the installation it took $((ready / 1000)).$((ready % 1000 / 100)) s"
}

# In a user namespace, the files of the machine belong to users that do not exist there.
is_root=no
if mkdir -p "$root/usr/local/share/man" 2>/dev/null && touch "$root/usr/local/share/probe" 2>/dev/null; then
    rm "$root/usr/local/share/probe"
    is_root=yes
fi

# install.sh as root, from a directory.
inside sh /release/install.sh --help | grep -c -- --dry-run >/dev/null
inside sh /release/install.sh --from /release --dry-run | grep -c '/usr/local/bin/exec-server' >/dev/null
[ -z "$(added)" ] || fail "a dry run installed something"
install_as_root() {
    inside sh /release/install.sh --from /release "${trusted[@]}" --require-signature >"$work/log" || { cat "$work/log" >&2; fail "install.sh failed as root"; }
    grep -q "verified the signature" "$work/log" || fail "install.sh did not verify the signature"
    grep -q "verified the checksum" "$work/log" || fail "install.sh did not verify the checksum"
    grep -q "exec-server --listen" "$work/log" || fail "install.sh does not say what to type next"
    [ "$(inside exec-server --version)" = "exec-server $version" ] || fail "the installed program does not run"
    for file in share/man/man1/exec-server.1 share/bash-completion/completions/exec-server share/zsh/site-functions/_exec-server \
        share/fish/vendor_completions.d/exec-server.fish; do
        [ -s "$root/usr/local/$file" ] || fail "install.sh did not install $file"
    done
    inside sh /release/install.sh --from /release "${trusted[@]}" >/dev/null || fail "a second installation over the first failed"
    inside sh /release/install.sh --uninstall >/dev/null
    [ -z "$(added)" ] || { added >&2; fail "--uninstall left files"; }
}
if [ "$is_root" = yes ]; then
    install_as_root
    echo "install.sh installs and removes as root"
else
    skip "install.sh as root and the .deb, because these tests do not run as root"
fi

# Wrong input, and releases that were tampered with.
refused "unknown option" --no-such-option
refused "there is no directory" --from /nowhere
refused "no download address"
refused "cannot download from" --from ftp://127.0.0.1/
refused "is version $version, not 9.9.9" --from /release --version 9.9.9
refused "is no version" --from /release --version '1;2'
tampered() {
    rm -rf "$root/tmp/release"
    cp -r "$root/release" "$root/tmp/release"
}
tampered
for archive in "$root"/tmp/release/*.tar.*; do
    printf X | dd of="$archive" bs=1 seek=4096 conv=notrunc status=none
done
refused "is damaged" --from /tmp/release
(cd "$root/tmp/release" && sha256sum -- *.tar.* >SHA256SUMS)
refused "signature of SHA256SUMS is wrong" --from /tmp/release
rm "$root/tmp/release/SHA256SUMS.sig"
refused "has no signature" --from /tmp/release
tampered
sed -i '/tar/d' "$root/tmp/release/SHA256SUMS"
refused "signature of SHA256SUMS is wrong" --from /tmp/release
ssh-keygen -q -t ed25519 -N '' -f "$work/other"
tampered
rm "$root/tmp/release/SHA256SUMS.sig"
ssh-keygen -q -Y sign -n exec-server -f "$work/other" "$root/tmp/release/SHA256SUMS" 2>/dev/null
refused "signature of SHA256SUMS is wrong" --from /tmp/release
rm -rf "$root/tmp/release"
echo "install.sh refuses damaged and tampered releases"

# As a user, from a server on loopback, with another shell and on a machine that has few tools.
if command -v python3 >/dev/null && command -v curl >/dev/null; then
    coproc python3 -u -m http.server --bind 127.0.0.1 --directory "$dist" 0 2>/dev/null
    files=$COPROC_PID
    trap 'kill "$files" 2>/dev/null || true' EXIT
    read -r line <&"${COPROC[0]}"
    port=$(sed 's/.* port \([0-9]*\).*/\1/' <<<"$line")
    source="http://127.0.0.1:$port"
else
    skip "a download by install.sh, because python3 or curl is not installed"
    source=/release
fi
id_of_user=0
identity=()
# The default prefix is the home of a user, and /usr/local for the root of a user namespace.
prefix=()
if chroot --userspec=65534:65534 --groups= "$root" /usr/bin/true 2>/dev/null; then
    id_of_user=65534
    identity=(--reuid=65534 --regid=65534 --clear-groups)
    chown 65534:65534 "$root/home/user"
else
    as_user() { chroot "$root" /usr/bin/env -i HOME=/home/user PATH=/usr/bin:/bin "$@"; }
    prefix=(--prefix /home/user/.local)
fi
started=$(date +%s%N)
as_user bash --posix /release/install.sh --from "$source" "${prefix[@]}" "${trusted[@]}" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "install.sh failed as a user"; }
grep -q 'export PATH="/home/user/.local/bin' "$work/log" || fail "install.sh does not say how to extend the path"
[ "$(as_user /home/user/.local/bin/exec-server --version)" = "exec-server $version" ] || fail "the program of the user does not run"
[ "$(stat -c %u "$root/home/user/.local/bin/exec-server")" = "$id_of_user" ] || fail "the program has another owner"
[ -z "$(added)" ] || fail "the installation of a user changed the system"
for file in share/man/man1/exec-server.1 share/bash-completion/completions/exec-server; do
    [ -s "$root/home/user/.local/$file" ] || fail "install.sh did not install $file for a user"
done
quick_start
as_user sh /release/install.sh "${prefix[@]}" --uninstall >/dev/null
left=$(find "$root/home/user/.local" ! -type d ! -path '*/state/*')
[ -z "$left" ] || fail "--uninstall of a user left $left"
if [ "$source" != /release ]; then
    if as_user sh /release/install.sh "${trusted[@]}" --from "$source/no-such-release" >"$work/log" 2>&1; then fail "install.sh installed from nowhere"; fi
    grep -q "cannot download" "$work/log" || fail "install.sh does not say that a download failed"
fi
# Without zstd and ssh-keygen: the .tar.gz, and a warning instead of a check.
mkdir "$root/tmp/tools"
for tool in sh tar gzip sed head mkdir cp chmod mv rm id uname mktemp cat sha256sum; do
    ln -s "$(command -v "$tool")" "$root/tmp/tools/$tool"
done
chroot "$root" /usr/bin/env -i PATH=/tmp/tools HOME=/root sh /release/install.sh --from /release --prefix /tmp/few >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "install.sh needs more tools than it says"; }
grep -q "checksum of .*tar.gz" "$work/log" && grep -qE "signature is not verified|this release is not signed" "$work/log" || fail "install.sh hides what it did not check"
if chroot "$root" /usr/bin/env -i PATH=/tmp/tools HOME=/root sh /release/install.sh --from /release --prefix /tmp/few --require-signature >"$work/log" 2>&1; then
    fail "install.sh ignored --require-signature"
fi
rm -rf "$root/tmp/few" "$root/tmp/tools"
echo "install.sh installs as a user, by download, and with few tools"

# The Debian package.
[ "$is_root" = yes ] || exit 0
command -v dpkg >/dev/null || { skip "the .deb, because dpkg is not installed"; exit 0; }
package=$(ls "$dist"/*_"$(dpkg --print-architecture)".deb)
[ "$(dpkg-deb --field "$package" Version)" = "$version" ] || fail "the .deb has another version"
force=()
if dpkg-deb --field "$package" Depends | grep -c . >/dev/null; then
    # The database of this root is empty; the libraries are those of the machine.
    force=(--force-depends)
fi
dpkg_here() { dpkg --root="$root" --force-not-root --force-unsafe-io --log=/dev/null "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "dpkg $1 failed"; }; }
dpkg_here "${force[@]}" --install "$package"
[ "$(inside exec-server --version)" = "exec-server $version" ] || fail "the program of the .deb does not run"
grep -q '^exec-server:' "$root/etc/passwd" || fail "the .deb did not make its user"
inside dpkg --verify exec-server || fail "the files of the .deb do not have their checksums"
for file in share/man/man1/exec-server-run.1.gz share/bash-completion/completions/exec-server lib/systemd/system/exec-server.service; do
    [ -s "$root/usr/$file" ] || fail "the .deb did not install $file"
done
if command -v systemd-analyze >/dev/null; then
    inside systemd-analyze verify --man=no /usr/lib/systemd/system/exec-server.service /usr/lib/systemd/system/exec-server-rendezvous.service \
        /usr/lib/systemd/system/exec-server.socket /usr/lib/systemd/system/exec-server-rendezvous.socket \
        /usr/lib/systemd/system/exec-server-executor@.service >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "systemd does not accept a unit"; }
    ! grep -q exec-server "$work/log" || { cat "$work/log" >&2; fail "systemd complains about a unit"; }
else
    skip "the units, because systemd-analyze is not installed"
fi
# State that services leave behind.
mkdir -p "$root"/var/lib/{exec-server,exec-server-executor/build-1,private/exec-server-rendezvous} "$root/etc/exec-server"
touch "$root/etc/exec-server/server.env" "$root/var/lib/exec-server/state"
dpkg_here "${force[@]}" --install "$package"
[ -e "$root/var/lib/exec-server/state" ] || fail "an upgrade removed the state"
dpkg_here --remove exec-server
[ -e "$root/etc/exec-server/server.env" ] || fail "removing the package removed its configuration"
dpkg_here --purge exec-server
[ -z "$(added)" ] || { added >&2; fail "a purge left files"; }
left=$(find "$root/etc" "$root/var" -name '*exec-server*')
[ -z "$left" ] || fail "a purge left $left"
diff <(cut -d: -f1 "$work/passwd" | sort) <(cut -d: -f1 "$root/etc/passwd" | sort) || fail "a purge left a user"
echo "the .deb installs, its units are accepted, and a purge leaves nothing"
