# SPDX-License-Identifier: Apache-2.0
"""Checking the arguments that are no arrays. Every error names the argument."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from typing import Any

_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)


def _wrong(name: str, expected: str, x: object) -> TypeError:
    return TypeError(f"{name}: expected {expected}, got {type(x).__name__} {x!r:.60}")


def as_bool(name: str, x: Any) -> bool:
    """A bool or a NumPy bool."""
    if x is True or x is False:
        return x
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.bool_):
        return bool(x)
    raise _wrong(name, "a bool", x)


def as_int(name: str, x: Any, allowed: range = _INT64) -> int:
    """An integer, NumPy's included, within `allowed`."""
    if type(x) is not int and (
        isinstance(x, bool) or hasattr(x, "__dlpack__") or not hasattr(x, "__index__")
    ):
        raise _wrong(name, "an int", x)
    value = operator.index(x)
    if value not in allowed:
        raise ValueError(f"{name}: {value} is outside {allowed.start} to {allowed.stop - 1}")
    return value


def as_length(name: str, x: Any, least: int = 0) -> int:
    """A hint or size; None: 0, not given."""
    return 0 if x is None else as_int(name, x, range(least, 2**63))


def as_float(name: str, x: Any) -> float:
    """A finite real number, NumPy's scalars included; no bool, string or array."""
    if type(x) is not float:
        numpy = sys.modules.get("numpy")
        real = (int, float) if numpy is None else (int, float, numpy.floating, numpy.integer)
        if not isinstance(x, real) or isinstance(x, bool):
            raise _wrong(name, "a float", x)
    try:
        value = float(x)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"{name}: {value}, expected a finite number")
    return value


def as_window(x: Any) -> tuple[int, int]:
    """(left, right), each -1 (unlimited) or the number of keys on that side of the diagonal."""
    if not isinstance(x, (tuple, list)):
        raise _wrong("window", "a pair of ints (left, right)", x)
    if len(x) != 2:
        raise ValueError(f"window: {len(x)} elements, expected 2 (left, right)")
    sides = range(-1, 2**63)
    return as_int("window", x[0], sides), as_int("window", x[1], sides)


def as_shape(name: str, x: Any) -> tuple[int, ...]:
    """A shape, or that of an array."""
    shape = getattr(x, "shape", x)
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence):
        raise _wrong(name, "a shape (a sequence of ints) or an array", x)
    return tuple(as_int(name, extent, range(2**63)) for extent in shape)


def as_choice(name: str, x: Any, choices: Sequence[str]) -> str:
    """One of a few strings."""
    if not isinstance(x, str):
        raise _wrong(name, "a str", x)
    if x not in choices:
        raise ValueError(f"{name}: {x!r} is none of {', '.join(choices)}")
    return x


def as_seed(seed: Any, offset: Any, dropout_p: float) -> tuple[int, int]:
    """Seed and offset of dropout: 64 bits each; needed only where something is dropped."""
    if seed is None:
        if dropout_p > 0:
            raise ValueError(
                "seed: None with dropout_p > 0, expected an int: the mask is a function of (seed, "
                "offset) alone, and the backward pass must be given the same ones"
            )
        seed = 0
    return as_int("seed", seed, _UINT64), as_int("offset", offset, _UINT64)
