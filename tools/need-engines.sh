# Sourced by test.sh: installs the servers that the tests of a rendezvous cluster start, or says how to get them.
missing=
[ -n "$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null)" ] || command -v initdb >/dev/null || missing="$missing postgresql"
for program in nats-server haproxy; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || missing="$missing $program"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "the tests of a rendezvous cluster need$missing; installing with apt-get" >&2
        if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; }; then
            echo "apt-get could not install$missing; the tests that need it are skipped" >&2
        fi
    else
        echo "tests of a rendezvous cluster are skipped; on Debian and Ubuntu: sudo apt-get install$missing" >&2
    fi
fi
unset missing program
