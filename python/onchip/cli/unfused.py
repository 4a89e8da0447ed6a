# SPDX-License-Identifier: Apache-2.0
"""Attention as written in a textbook, which materialises S and P: what the library is held against.

Arrays are (B, S, H, D) and computed in the dtype they come in. `round_to` rounds S and P (and their
gradients) to a 16-bit type, as a computation in that type would store them.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]


class Forward(NamedTuple):
    out: Array  # (B, Sq, Hq, D)
    lse: Array  # (B, Hq, Sq)
    p: Array  # (B, Hkv, Hq / Hkv, Sq, Sk)


class Gradients(NamedTuple):
    dq: Array
    dk: Array
    dv: Array


def _by_group(x: Array, heads_kv: int) -> Array:
    """(B, S, H, D) -> (B, Hkv, H / Hkv, S, D), a view."""
    b, s, h, d = x.shape
    grouped: Array = x.reshape(b, s, heads_kv, h // heads_kv, d).transpose(0, 2, 3, 1, 4)
    return grouped


def _by_head(x: Array) -> Array:
    """(B, Hkv, G, S, D) -> (B, S, Hkv * G, D)."""
    b, heads_kv, group, s, d = x.shape
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2, 4)).reshape(b, s, heads_kv * group, d)


def _rounded(x: Array, round_to: DTypeLike | None) -> Array:
    if round_to is None:
        return x
    rounded: Array = x.astype(round_to).astype(x.dtype)
    return rounded


def forward(
    q: Array, k: Array, v: Array, *, causal: bool = False, round_to: DTypeLike | None = None
) -> Forward:
    heads_kv = k.shape[2]
    qg, kg, vg = (_by_group(x, heads_kv) for x in (q, k, v))
    scale = q.dtype.type(q.shape[3] ** -0.5)
    s = np.matmul(qg * scale, kg.swapaxes(-1, -2))
    if causal:
        sq, sk = s.shape[-2:]
        hidden = np.arange(sk)[None, :] > np.arange(sq)[:, None] + (sk - sq)
        np.putmask(s, np.broadcast_to(hidden, s.shape), -np.inf)
    s = _rounded(s, round_to)
    top = s.max(axis=-1, keepdims=True)
    p = np.exp(np.subtract(s, top, out=s), out=s)
    total = p.sum(axis=-1, keepdims=True)
    p /= total
    p = _rounded(p, round_to)
    lse = (np.log(total) + top)[..., 0]
    b, _, group, sq = lse.shape
    return Forward(_by_head(np.matmul(p, vg)), lse.reshape(b, heads_kv * group, sq), p)


def backward(
    dout: Array, q: Array, k: Array, v: Array, saved: Forward, *, round_to: DTypeLike | None = None
) -> Gradients:
    heads_kv = k.shape[2]
    dog, og, qg, kg, vg = (_by_group(x, heads_kv) for x in (dout, saved.out, q, k, v))
    scale = q.dtype.type(q.shape[3] ** -0.5)
    dv = np.matmul(saved.p.swapaxes(-1, -2), dog).sum(axis=2, keepdims=True)
    ds = np.matmul(dog, vg.swapaxes(-1, -2))
    ds -= (dog * og).sum(axis=-1, keepdims=True)
    ds *= saved.p
    ds *= scale
    ds = _rounded(ds, round_to)
    dq = np.matmul(ds, kg)
    dk = np.matmul(ds.swapaxes(-1, -2), qg).sum(axis=2, keepdims=True)
    return Gradients(_by_head(dq), _by_head(dk), _by_head(dv))
