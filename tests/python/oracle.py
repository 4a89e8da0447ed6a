# SPDX-License-Identifier: Apache-2.0
"""Attention written straight from its formulas in NumPy, sharing no code with the library.

`forward` and `backward` materialise the score matrix. With `precision="float64"` they are the
reference; with a narrower precision they are the naive computation in that type (every matrix
rounded to it, float32 accumulation), which is the yardstick of the 2x rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Gradients(NamedTuple):
    dq: Array
    dk: Array
    dv: Array
    dbias: Array | None
    dsinks: Array | None


# ---------------------------------------------------------------- rounding


def to_bfloat16(x: Array) -> Array:
    """Nearest bfloat16 values, as float32."""
    x = np.ascontiguousarray(x, np.float32)
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    return np.where(np.isnan(x), x, rounded.view(np.float32))


class _Arithmetic:
    """The accumulator's type, and rounding to the type that a matrix is kept in.

    What is kept are values of that type divided by `grid`: with another grid the same computation
    makes other rounding errors of the same size.
    """

    def __init__(self, precision: str, grid: float = 1.0) -> None:
        self.precision = precision
        self.type = np.float64 if precision == "float64" else np.float32
        self.grid = self.type(grid)

    def read(self, x: Any) -> Array:
        return np.asarray(x).astype(self.type)

    def keep(self, x: Array) -> Array:
        if self.precision == "float16":
            return (x * self.grid).astype(np.float16).astype(self.type) / self.grid
        if self.precision == "bfloat16":
            return to_bfloat16(x * self.grid) / self.grid
        kept = x.astype(self.type)
        return kept if self.grid == 1 else kept * self.grid / self.grid


# ---------------------------------------------------------------- dropout


def philox(counter: list[Array], key: tuple[int, int]) -> list[Array]:
    """Philox4x32-10: four uint32 words (held in uint64) for each counter."""
    mask = np.uint64(0xFFFFFFFF)
    k0, k1 = key
    c = [np.asarray(word, np.uint64) & mask for word in counter]
    for _ in range(10):
        left = np.uint64(0xD2511F53) * c[0]
        right = np.uint64(0xCD9E8D57) * c[2]
        c = [
            (right >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            right & mask,
            (left >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            left & mask,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def threshold(p: float) -> int:
    return math.floor(65536 * p + 0.5)


def keep_matrix(rows: int, keys: int, head: int, p: float, seed: int, offset: int) -> Array:
    """Which weights of one head are kept; `head` counts b * Hq + h."""
    i, j = np.meshgrid(np.arange(rows), np.arange(keys), indexing="ij")
    counter = [j // 8, i, np.full_like(i, head), np.full_like(i, offset & 0xFFFFFFFF)]
    words = philox(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    lanes = [(w >> np.uint64(16 * half)) & np.uint64(0xFFFF) for w in words for half in (0, 1)]
    if i.size == 0:
        return np.ones((rows, keys), bool)
    lane = np.take_along_axis(np.stack(lanes), (j % 8)[None], axis=0)[0]
    return lane >= threshold(p)


def dropout_mask(shape: tuple[int, int, int, int], p: float, seed: int, offset: int) -> Array:
    batch, heads, rows, keys = shape
    mask = np.ones(shape, np.uint8)
    for b in range(batch):
        for h in range(heads):
            mask[b, h] = keep_matrix(rows, keys, b * heads + h, p, seed, offset)
    return mask


# ---------------------------------------------------------------- one head of one sequence


def visible_keys(rows: int, keys: int, window: tuple[int, int]) -> Array:
    i = np.arange(rows)[:, None]
    j = np.arange(keys)[None, :]
    distance = j - (i + keys - rows)
    left, right = window
    seen = np.ones((rows, keys), bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def product(weights: Array, seen: Array, values: Array) -> Array:
    """Sum over the seen j of weights[i, j] * values[j]; what is not seen may be NaN."""
    if np.isfinite(values).all():
        return np.where(seen, weights, 0).astype(values.dtype) @ values
    out = np.zeros((len(weights), values.shape[1]), values.dtype)
    for i in range(len(weights)):
        out[i] = weights[i, seen[i]] @ values[seen[i]]
    return out


@dataclass
class _Head:
    """Everything of one head of one sequence, cut to the lengths that count."""

    q: Array
    k: Array
    v: Array
    bias: Array | float
    slope: float
    sink: float | None
    keep: Array | float  # what dropout multiplies a weight by


@dataclass
class _Softmax:
    seen: Array
    tanh: Array | float
    p: Array
    p_sink: Array
    lse: Array


def _softmax(x: _Head, options: dict[str, Any], a: _Arithmetic) -> _Softmax:
    rows, keys = len(x.q), len(x.k)
    scale, softcap = options["scale"], options["softcap"]
    s = a.keep(a.keep(x.q @ x.k.T) * a.type(scale))
    tanh: Array | float = 0.0
    if softcap > 0:
        tanh = np.tanh(s / a.type(softcap))
        s = a.keep(a.type(softcap) * tanh)
    distance = np.abs(np.arange(rows)[:, None] + (keys - rows) - np.arange(keys)[None, :])
    s = a.keep(s + x.bias - a.type(x.slope) * distance.astype(a.type))
    seen = visible_keys(rows, keys, options["window"])
    s = np.where(seen, s, -np.inf)
    any_seen = ~(s == -np.inf).all(axis=1)  # a bias of -inf hides a key too
    sink = np.full(rows, -np.inf if x.sink is None else x.sink, a.type)
    m = np.maximum(s.max(axis=1, initial=-np.inf), sink)
    m = np.where(m == -np.inf, 0, m).astype(a.type)
    e, e_sink = np.exp(s - m[:, None]), np.exp(sink - m)
    total = e.sum(axis=1) + e_sink
    divisor = np.where(total == 0, 1, total)
    return _Softmax(
        seen=seen,
        tanh=tanh,
        p=a.keep(np.where(any_seen[:, None], e / divisor[:, None], 0)),
        p_sink=np.where(any_seen, e_sink / divisor, 0),
        lse=np.where(any_seen, m + np.log(total), -np.inf),
    )


def _head_forward(x: _Head, options: dict[str, Any], a: _Arithmetic) -> tuple[Array, Array]:
    soft = _softmax(x, options, a)
    return a.keep(product(a.keep(soft.p * x.keep), soft.seen, x.v)), soft.lse


def _head_backward(
    x: _Head, dout: Array, dlse: Array, options: dict[str, Any], a: _Arithmetic
) -> tuple[Array, Array, Array, Array, Array]:
    """dq, dk, dv, the gradient of the softmax's argument, and that of the sink's logit."""
    soft = _softmax(x, options, a)
    seen, any_seen = soft.seen, soft.lse != -np.inf
    weights = a.keep(soft.p * x.keep)
    out = a.keep(product(weights, seen, x.v))
    dp = a.keep(a.keep(dout @ x.v.T) * x.keep)
    inner = (dout * out).sum(axis=1) - dlse
    ds = np.where(seen, a.keep(soft.p * (dp - inner[:, None])), 0)
    ds = np.where(any_seen[:, None], ds, 0).astype(a.type)
    through = a.keep(ds * (1 - soft.tanh * soft.tanh)) if options["softcap"] > 0 else ds
    scale = a.type(options["scale"])
    return (
        a.keep(product(through, seen, x.k) * scale),
        product(through.T, seen.T, x.q) * scale,
        product(weights.T, seen.T, dout),
        ds,
        np.where(any_seen, soft.p_sink * -inner, 0).sum(),
    )


# ---------------------------------------------------------------- whole problems


@dataclass
class _Sequence:
    """Where one sequence lies. `q_at` and `k_at` index the token axes of the whole tensors."""

    b: int
    q_at: tuple[Any, ...]
    k_at: tuple[Any, ...]
    lse_at: tuple[Any, ...]  # behind the heads


def _lengths(seqused: Any, count: int, b: int) -> int:
    return count if seqused is None else int(seqused[b])


def _sequences(q: Array, k: Array, o: dict[str, Any]) -> Iterator[_Sequence]:
    cu_q, cu_k = o["cu_seqlens_q"], o["cu_seqlens_k"]
    batch = len(q) if cu_q is None else len(cu_q) - 1
    for b in range(batch):
        if cu_q is None:
            rows = slice(0, _lengths(o["seqused_q"], q.shape[1], b))
            q_at: tuple[Any, ...] = (b, rows)
            lse_at: tuple[Any, ...] = (b, slice(None), rows)
        else:
            n = _lengths(o["seqused_q"], int(cu_q[b + 1]) - int(cu_q[b]), b)
            rows = slice(int(cu_q[b]), int(cu_q[b]) + n)
            q_at, lse_at = (rows,), (slice(None), rows)
        if o["block_table"] is not None:
            size = k.shape[1]
            token = np.arange(int(o["seqused_k"][b]))
            k_at: tuple[Any, ...] = (np.asarray(o["block_table"])[b, token // size], token % size)
        elif cu_k is not None:
            n = _lengths(o["seqused_k"], int(cu_k[b + 1]) - int(cu_k[b]), b)
            k_at = (slice(int(cu_k[b]), int(cu_k[b]) + n),)
        else:
            k_at = (b, slice(0, _lengths(o["seqused_k"], k.shape[1], b)))
        yield _Sequence(b, q_at, k_at, lse_at)


_DEFAULTS: dict[str, Any] = {
    "scale": None,
    "causal": False,
    "window": (-1, -1),
    "softcap": 0.0,
    "bias": None,
    "alibi_slopes": None,
    "sinks": None,
    "dropout_p": 0.0,
    "seed": 0,
    "offset": 0,
    "cu_seqlens_q": None,
    "cu_seqlens_k": None,
    "seqused_q": None,
    "seqused_k": None,
    "block_table": None,
}


def _options(q: Array, given: dict[str, Any]) -> dict[str, Any]:
    unknown = set(given) - set(_DEFAULTS)
    if unknown:
        raise TypeError(f"unknown options {sorted(unknown)}")
    o = {**_DEFAULTS, **given}
    if o["scale"] is None:
        o["scale"] = 1 / math.sqrt(q.shape[-1]) if q.shape[-1] > 0 else 1.0
    left, right = o["window"]
    if o["causal"]:
        right = 0
    o["window"] = (left, right)
    return o


def _broadcast(index: int, extent: int) -> int:
    return 0 if extent == 1 else index


def _bias_of(bias: Array, b: int, h: int, rows: int, keys: int) -> Array:
    part = bias[_broadcast(b, bias.shape[0]), _broadcast(h, bias.shape[1])]
    part = part if part.shape[0] == 1 else part[:rows]
    return part if part.shape[1] == 1 else part[:, :keys]


def _heads(
    q: Array, k: Array, v: Array, at: _Sequence, o: dict[str, Any], a: _Arithmetic
) -> Iterator[tuple[int, int, _Head]]:
    heads, heads_kv = q.shape[-2], k.shape[-2]
    qs, ks, vs = a.read(q[at.q_at]), a.read(k[at.k_at]), a.read(v[at.k_at])
    rows, keys = len(qs), len(ks)
    for h in range(heads):
        g = h // (heads // heads_kv)
        slopes = None if o["alibi_slopes"] is None else np.asarray(o["alibi_slopes"])
        slope = 0.0 if slopes is None else float(slopes[h] if slopes.ndim == 1 else slopes[at.b, h])
        keep: Array | float = 1.0
        p = threshold(o["dropout_p"]) / 65536
        if p > 0:
            head = at.b * heads + h
            kept = keep_matrix(rows, keys, head, o["dropout_p"], o["seed"] or 0, o["offset"])
            keep = kept.astype(a.type) * a.type(1 / (1 - p))
        bias: Array | float = 0.0
        if o["bias"] is not None:
            bias = a.read(_bias_of(np.asarray(o["bias"]), at.b, h, rows, keys))
        sink = None if o["sinks"] is None else float(np.asarray(o["sinks"])[h])
        yield h, g, _Head(qs[:, h], ks[:, g], vs[:, g], bias, slope, sink, keep)


def forward(
    q: Array, k: Array, v: Array, *, precision: str = "float64", grid: float = 1.0, **options: Any
) -> tuple[Array, Array]:
    """out and lse. The options are those of the library; paged: block_table and seqused_k."""
    a, o = _Arithmetic(precision, grid), _options(q, options)
    out = np.zeros((*q.shape[:-1], v.shape[-1]), a.type)
    axes = q.shape[:-1]
    lse = np.full((axes[0], axes[2], axes[1]) if q.ndim == 4 else (axes[1], axes[0]), -np.inf)
    with np.errstate(all="ignore"):
        for at in _sequences(q, k, o):
            for h, _, head in _heads(q, k, v, at, o, a):
                out[at.q_at][:, h], lse[at.lse_at][h] = _head_forward(head, o, a)
    return out, lse


def backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    *,
    dlse: Array | None = None,
    precision: str = "float64",
    grid: float = 1.0,
    **options: Any,
) -> Gradients:
    a, o = _Arithmetic(precision, grid), _options(q, options)
    dq, dk, dv = (np.zeros(x.shape, a.type) for x in (q, k, v))
    bias = o["bias"]
    dbias = None if bias is None else np.zeros(np.shape(bias), np.float64)
    dsinks = None if o["sinks"] is None else np.zeros(np.shape(o["sinks"]), np.float64)
    with np.errstate(all="ignore"):
        for at in _sequences(q, k, o):
            douts = a.read(dout[at.q_at])
            for h, g, head in _heads(q, k, v, at, o, a):
                rows, keys = len(head.q), len(head.k)
                incoming = np.zeros(rows) if dlse is None else np.asarray(dlse)[at.lse_at][h]
                dq_h, dk_h, dv_h, ds, dsink = _head_backward(
                    head, douts[:, h], incoming.astype(a.type), o, a
                )
                dq[at.q_at][:, h] = dq_h
                dk[at.k_at][:, g] += dk_h
                dv[at.k_at][:, g] += dv_h
                if dbias is not None:
                    part = _bias_of(dbias, at.b, h, rows, keys)
                    for axis in (0, 1):
                        if part.shape[axis] == 1:
                            ds = ds.sum(axis=axis, keepdims=True)
                    part += ds
                if dsinks is not None:
                    dsinks[h] += dsink
    return Gradients(dq, a.keep(dk), a.keep(dv), dbias, dsinks)


# ---------------------------------------------------------------- comparison


def check(
    name: str,
    got: Any,
    exact: Array,
    naive: Array,
    *,
    precision: str | None = None,
    slack: float = 1e-5,
) -> None:
    """The 2x rule: error <= 2x the naive computation's + slack; infinities and NaNs must agree.

    With `precision` the yardstick is no shorter than the rounding of the exact result to it.
    """
    got = np.asarray(got).astype(np.float64)
    assert got.shape == exact.shape, f"{name}: shape {got.shape}, expected {exact.shape}"
    odd = ~np.isfinite(exact)
    same = (got == exact) | (np.isnan(got) & np.isnan(exact))
    assert same[odd].all(), f"{name}: not-finite values differ from the reference"
    if (~odd).any():
        naive_error = np.abs(np.asarray(naive, np.float64) - exact)[~odd]
        naive_error = naive_error[np.isfinite(naive_error)].max(initial=0.0)
        if precision is not None:
            rounding = np.abs(_Arithmetic(precision).keep(exact) - exact)[~odd].max()
            naive_error = max(naive_error, rounding)
        error = np.abs(got - exact)[~odd].max()
        bound = 2 * naive_error + slack
        assert error <= bound, f"{name}: error {error:.3g}, bound {bound:.3g}"
