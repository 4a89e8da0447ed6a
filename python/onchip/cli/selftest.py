# SPDX-License-Identifier: Apache-2.0
"""A problem small enough to run at once, for `onchip doctor`."""

from typing import Any

import numpy as np

import onchip
from onchip.cli import unfused

Array = unfused.Array


def small_inputs() -> list[Array]:
    """q, k, v of a causal grouped-query problem with lengths that fit no tile."""
    rng = np.random.default_rng(1)
    return [
        rng.standard_normal((2, 37, heads, 24), dtype=np.float32) for heads in (4, 2, 2)
    ]  # fmt: skip


def worst_error(out: Any, inputs: list[Array]) -> float:
    """Largest error of `out` = attention(*inputs, causal=True), against float64."""
    expected = unfused.forward(*(x.astype(np.float64) for x in inputs), causal=True).out
    return float(np.max(np.abs(np.asarray(out).astype(np.float64) - expected)))


def run() -> str | None:
    """What is wrong with the CPU backend; None where forward and backward are right."""
    q, k, v = small_inputs()
    dout = np.ones_like(q)
    try:
        out, lse = onchip.attention(q, k, v, causal=True, return_lse=True)
        gradients = onchip.attention_backward(dout, q, k, v, out, lse, causal=True)
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        return str(error)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    saved = unfused.forward(wide[0], wide[1], wide[2], causal=True)
    exact = unfused.backward(dout.astype(np.float64), wide[0], wide[1], wide[2], saved)
    pairs = zip((out, *gradients), (saved.out, *exact), strict=True)
    worst = float(np.max([np.max(np.abs(x - y)) for x, y in pairs]))  # NaN stays NaN
    return None if worst <= 1e-4 else f"attention is wrong by {worst:.2g}"
