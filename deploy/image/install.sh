#!/bin/sh
# Install the sidecar and its pinned dependencies into an empty prefix. The Dockerfile's first stage is this
# script, and so is .ci/image, which starts what came out of it; so what is shipped is what was tested.
#
#   deploy/image/install.sh PREFIX          PYTHON: the interpreter (python3.11)
#
# Every package comes by its hash and as a wheel: nothing is compiled, no compiler is needed.
set -eu
prefix=$1
python=$(command -v "${PYTHON:-python3.11}")
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The wheel, by a build backend that is pinned too, from a copy: the source tree stays as it was.
cp -r "$here/sidecar" "$here/pyproject.toml" "$here/README.md" "$here/LICENSE" "$work"
"$python" -m venv "$work/build"
"$work/build/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --only-binary=:all: \
    --require-hashes -r "$here/deploy/image/requirements-build.txt"
"$work/build/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir "$work/wheels" "$work"

pip() { "$work/build/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    --no-warn-script-location --ignore-installed --prefix="$prefix" "$@"; }
pip --only-binary=:all: --require-hashes -r "$here/requirements.txt"
pip --no-deps "$work"/wheels/*.whl

# The script's first line names the interpreter that installed it, which is gone.
sed -i "1s|^#!.*|#!$python|" "$prefix"/bin/*
