#!/usr/bin/env bash
# Installs Chromium, in which the tests look at our pages, from the Debian package, when there is none.
# CHROMIUM names another program that is to be used.
set -euo pipefail

for program in "${CHROMIUM:-}" chromium chromium-browser google-chrome; do
    if [ -n "$program" ] && command -v "$program" >/dev/null; then
        exit 0
    fi
done

fail() {
    echo "install_chromium: $1" >&2
    exit 1
}

by_hand="install Chromium by hand (or set CHROMIUM to a browser like it), then run the tests again."
command -v apt-get >/dev/null || fail "no apt-get here; $by_hand"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    { command -v sudo && sudo -n true; } >/dev/null 2>&1 || fail "needs root, or sudo without a password; $by_hand"
    as_root=(sudo -n)
fi

install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium
}
install || { "${as_root[@]}" apt-get update -q && install; } || fail "apt-get could not install chromium; $by_hand"
command -v chromium >/dev/null || fail "the package is installed, but there is no chromium command."
