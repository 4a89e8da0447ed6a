# SPDX-License-Identifier: Apache-2.0
"""Importing: quick, and without a framework."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata, resources

import pytest

import onchip

_PROBE = """
import sys, time
start = time.perf_counter()
import onchip
print(time.perf_counter() - start)
print(*sorted(m for m in ("numpy", "ml_dtypes", "torch", "jax", "cupy") if m in sys.modules))
"""


def _probe() -> tuple[float, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], check=True, capture_output=True, text=True
    )
    seconds, *loaded = done.stdout.split()
    return float(seconds), loaded


def test_import_loads_no_framework() -> None:
    assert _probe()[1] == []


def test_import_is_quick() -> None:
    # The best of a few: the file cache is warm then, and another process may be busy.
    assert min(_probe()[0] for _ in range(5)) < 0.2


def test_public_names() -> None:
    for name in onchip.__all__:
        assert getattr(onchip, name) is not None
    documented = [n for n in onchip.__all__ if callable(getattr(onchip, n))]
    assert all(getattr(onchip, name).__doc__ for name in documented)
    assert resources.files(onchip).joinpath("py.typed").is_file()


def test_version() -> None:
    try:
        installed = metadata.version("onchip")
    except metadata.PackageNotFoundError:
        pytest.skip("onchip is not installed as a distribution")
    assert onchip.__version__ == installed
