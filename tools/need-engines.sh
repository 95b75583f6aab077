# Sourced by test.sh and deploy/cluster/up: installs the servers that a rendezvous cluster needs, if this is root and
# `install_engines` is not `no`. Afterwards `missing_engines` has the packages that are missing.
find_missing_engines() {
    local program
    missing_engines=
    [ -n "$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null)" ] || command -v initdb >/dev/null || missing_engines=" postgresql"
    for program in nats-server haproxy; do
        PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || missing_engines="$missing_engines $program"
    done
}
find_missing_engines
if [ -n "$missing_engines" ] && [ "${install_engines:-}" != no ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "a rendezvous cluster needs$missing_engines; installing with apt-get" >&2
    # shellcheck disable=SC2086
    if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing_engines; }; then
        echo "apt-get could not install$missing_engines" >&2
    fi
    find_missing_engines
fi
