# SPDX-License-Identifier: Apache-2.0
"""What the library allocates for a call (results and workspace): NaN instead of what was there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from onchip import _arrays


def _torch(x: Any) -> Any:
    torch = _arrays.sys.modules["torch"]
    if x.numel() > 0:
        x.view(torch.uint8).fill_(255)
    return x


def _array(x: Any) -> Any:  # of NumPy or CuPy
    if x.size > 0:
        x.view("uint8")[...] = 255
    return x


def _jax(x: Any) -> Any:
    if not hasattr(x, "devices"):  # a Buffer, in host memory
        return x
    (device,) = x.devices()
    filled = np.full(x.shape, 255 if x.dtype == np.uint8 else np.nan, x.dtype)
    return _arrays.sys.modules["jax"].device_put(filled, device)


@contextlib.contextmanager
def poisoned_allocations() -> Iterator[None]:
    """0xFF in every byte is NaN in every floating-point type."""
    fills: dict[type, Callable[[Any], Any]] = {
        _arrays.CuPy: _array,
        _arrays.Jax: _jax,
        _arrays.NumPy: _array,
        _arrays.Torch: _torch,
    }
    originals = {cls: cls.empty for cls in fills}  # type: ignore[attr-defined]

    def poisoning(cls: type, fill: Callable[[Any], Any]) -> Callable[..., Any]:
        def empty(self: Any, like: Any, shape: Sequence[int], dtype: str) -> Any:
            return fill(originals[cls](self, like, shape, dtype))

        return empty

    try:
        for cls, fill in fills.items():
            cls.empty = poisoning(cls, fill)  # type: ignore[attr-defined]
        yield
    finally:
        for cls, original in originals.items():
            cls.empty = original  # type: ignore[attr-defined]
