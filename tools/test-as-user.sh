#!/usr/bin/env bash
# Runs the attacks on the sandbox once more as an unprivileged user, if this is root and the machine allows it.
# The programs are copied to where that user can execute them; they must have been built before.
set -euo pipefail
cd "$(dirname "$0")/.."
user=65534

skip() {
    echo "the attack suite was not run as an unprivileged user: $1" >&2
    exit 0
}

[ "$(id -u)" -eq 0 ] || skip "these tests are run as one already"
command -v setpriv >/dev/null || skip "setpriv (util-linux) is missing"
as_user=(setpriv --reuid="$user" --regid="$user" --clear-groups --inh-caps=-all --no-new-privs)
"${as_user[@]}" true 2>/dev/null || skip "root cannot become another user here"
"${as_user[@]}" unshare --user --map-root-user true 2>/dev/null ||
    skip "unprivileged users cannot make user namespaces here; \`exec-server doctor\` says how to allow them"

# Of the whole workspace: with the features of one crate alone, all dependencies would be built once more.
built=$(cargo test --workspace --locked --test it --no-run 2>&1)
tests=$(sed -n 's/.*Executable .*(\(.*\))$/\1/p' <<<"$built" | head -n 1)
[ -n "$tests" ] || { echo "$built" >&2; echo "the tests were not built" >&2; exit 1; }

# The tests look for the server one directory above their own, and keep state beside it.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/deps" "$place/home" "$place/tmp"
cp "$tests" "$place/deps/it"
cp "$(dirname "$tests")/../exec-server" "$place/exec-server"
chmod 755 "$place"
chown -R "$user:$user" "$place"

echo "the attack suite as user $user:"
cd "$place"
env -i PATH="$PATH" LANG="${LANG:-C}" HOME="$place/home" TMPDIR="$place/tmp" \
    "${as_user[@]}" "$place/deps/it" sandbox:: --skip reference_client "$@"
