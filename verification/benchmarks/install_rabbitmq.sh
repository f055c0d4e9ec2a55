#!/usr/bin/env bash
# Installs RabbitMQ, the peer of our benchmarks, from the Debian package, and leaves no service behind.
#
# The benchmarks start a node of their own on free ports, so the package's system service is only in the
# way: where this script is what brings the package in, it also keeps the service from starting.
set -euo pipefail

server=/usr/lib/rabbitmq/bin/rabbitmq-server
if [ -x "$server" ]; then
    exit 0
fi

fail() {
    echo "install_rabbitmq: $1" >&2
    exit 1
}

command -v apt-get >/dev/null || fail "no apt-get here; install the rabbitmq-server package by hand, then run the benchmarks again."
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "needs root or sudo to install the rabbitmq-server package."
    as_root=(sudo)
fi

export DEBIAN_FRONTEND=noninteractive
# RUNLEVEL=1 makes invoke-rc.d skip the start of the service on machines that have no policy for it.
install() {
    "${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends rabbitmq-server
}
install || { "${as_root[@]}" apt-get update -q && install; } || fail "apt-get could not install rabbitmq-server."
if [ -d /run/systemd/system ]; then
    "${as_root[@]}" systemctl disable --now rabbitmq-server || true
fi
[ -x "$server" ] || fail "the package is installed, but $server is missing."
