#!/bin/sh
# Installs the Debian packages of the given purposes (see packages.txt) that are missing.
# Does nothing, and needs no rights, if all are there.
set -eu

list="$(dirname "$0")/packages.txt"
missing=""
for purpose in "$@"; do
  for package in $(sed -n "s/^$purpose  *//p" "$list"); do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' ||
      missing="$missing $package"
  done
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "hpsim needs the Debian packages$missing, or what they hold, and there is no apt-get here" >&2
  exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "these packages are missing, and installing them takes root or sudo; as root, run" >&2
    echo "  apt-get install --no-install-recommends$missing" >&2
    exit 1
  fi
  as_root=sudo
fi
echo "installing$missing" >&2
# sudo drops the environment, so the setting is passed to the commands themselves.
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
