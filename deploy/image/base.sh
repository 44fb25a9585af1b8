#!/bin/sh
# A base of Debian's packages alone, for machines that reach no registry of images: `make image-base`, then
# `make image BASE=localhost/kvarn-base`. Needs root, mmdebstrap and buildah; asks the mirror that this machine's apt asks.
set -eu
name=${1:-localhost/kvarn-base}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
export SOURCE_DATE_EPOCH
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mmdebstrap --variant=minbase --include=python3,ca-certificates \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  bookworm "$root/root.tar"
container=$(buildah from scratch)
trap 'buildah rm "$container" >/dev/null; rm -rf "$root"' EXIT
buildah add --quiet "$container" "$root/root.tar" / >/dev/null
buildah config --cmd /bin/sh "$container"
buildah commit --quiet --timestamp "$SOURCE_DATE_EPOCH" "$container" "$name"
