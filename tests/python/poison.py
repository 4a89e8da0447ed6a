# SPDX-License-Identifier: Apache-2.0
"""What the library allocates for a call (results and workspace): NaN instead of what was there."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from onchip import _arrays

Empty = Callable[[Any, Any, Sequence[int], str], Any]


def _torch(empty: Empty, family: Any, like: Any, shape: Sequence[int], dtype: str) -> Any:
    x = empty(family, like, shape, dtype)
    if x.numel() > 0:
        x.view(sys.modules["torch"].uint8).fill_(255)
    return x


def _array(empty: Empty, family: Any, like: Any, shape: Sequence[int], dtype: str) -> Any:
    """Of NumPy or CuPy."""
    x = empty(family, like, shape, dtype)
    if x.size > 0:
        x.view("uint8")[...] = 255
    return x


def _jax(empty: Empty, family: Any, like: Any, shape: Sequence[int], dtype: str) -> Any:
    (device,) = like.devices()
    if device.platform != "gpu":  # a Buffer
        return empty(family, like, shape, dtype)
    jax = sys.modules["jax"]
    value = 255 if dtype == "uint8" else np.nan
    return jax.device_put(np.full(shape, value, jax.numpy.dtype(dtype)), device)


@contextlib.contextmanager
def poisoned_allocations() -> Iterator[None]:
    """0xFF in every byte is NaN in every floating-point type."""
    poisons: dict[Any, Callable[..., Any]] = {
        _arrays.CuPy: _array,
        _arrays.Jax: _jax,
        _arrays.NumPy: _array,
        _arrays.Torch: _torch,
    }
    originals = {cls: cls.empty for cls in poisons}
    torch: Any = _arrays.Torch
    lend_workspace = torch.lend_workspace
    try:
        torch.lend_workspace = _arrays.Family.lend_workspace  # so that workspaces come by `empty`
        for cls, poison in poisons.items():
            cls.empty = functools.partialmethod(_through, poison, originals[cls])
        yield
    finally:
        for cls, original in originals.items():
            cls.empty = original
        torch.lend_workspace = lend_workspace


def _through(family: Any, poison: Callable[..., Any], empty: Empty, *arguments: Any) -> Any:
    return poison(empty, family, *arguments)
