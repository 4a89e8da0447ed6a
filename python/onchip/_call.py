# SPDX-License-Identifier: Apache-2.0
"""Attention on the caller's arrays: the functions of the package that compute.

Every function takes arrays of NumPy (bfloat16 by ml_dtypes), PyTorch, JAX, CuPy or any library with
`__dlpack__`, copies none of them, and returns arrays of the same library, on the same device, in
the dtype of q. On a GPU the work is queued on the library's current stream.

All arrays of a call belong to one library. Only lengths, block tables, bias, alibi_slopes and sinks
may be NumPy arrays beside arrays of another library in host memory.

Formula, degenerate cases and accuracy: docs/algorithm.md and docs/numerics.md; the recurrence is
that of FlashAttention-2 (Dao 2023, arXiv:2307.08691).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onchip import _core
from onchip._arrays import Operands
from onchip._scalars import as_bool, as_float, as_int, as_length, as_seed, as_shape
from onchip._steps import (
    DENSE,
    PACKED,
    backward,
    first_part,
    forward,
    parts,
    read_lengths,
    read_qkv,
    read_score_terms,
    set_options,
)

_INT32 = range(2**31)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    softmax: str = "auto",
    out: Any = None,
    return_lse: bool = False,
) -> Any:
    """Exact attention, softmax(scale q k^T + ...) v, without the matrix of scores.

    For query i and key j, with c = Sk - Sq (the last query sees the last key):
        s = scale * q_i . k_j;  s = softcap * tanh(s / softcap) if softcap > 0
        s += bias[b, h, i, j];  s -= alibi_slopes[h] * |i + c - j|
        key j is visible iff -left <= j - (i + c) <= right
        out_i = sum_j exp(s_ij - lse_i) v_j;  lse_i = log(sum_j exp(s_ij) + exp(sinks[h]))

    On a GPU the work is queued on the current stream of q's library, and the call returns before it
    is done. There D and Dv are multiples of 8 up to 256, and float64 is not computed.

    Args:
        q: (B, Sq, Hq, D), float32, float16, bfloat16 or float64; any strides, the last one 1.
        k: (B, Sk, Hkv, D), q's dtype; Hkv divides Hq (grouped-query attention).
        v: (B, Sk, Hkv, Dv), q's dtype.
        scale: factor of the scores; None: 1/sqrt(D).
        causal: hide the keys after the query: the same as a right window of 0.
        window: (left, right), how many keys are visible on each side; -1: all.
        softcap: bound of the scores; 0: none.
        bias: (B|1, Hq|1, Sq|1, Sk|1), q's dtype or that of lse; -inf hides a key.
        alibi_slopes: (Hq,) or (B, Hq), dtype of lse.
        sinks: (Hq,), dtype of lse: a logit that takes part in the sum only.
        dropout_p: probability of dropping a weight, in [0, 1).
        seed: 64-bit seed, needed with dropout_p > 0; see `dropout_mask`.
        offset: 64-bit offset of the same random stream.
        softmax: "auto" or "safe"; a choice of speed, not of accuracy. Kernels for Hopper may take a
            row's weights relative to an earlier great score until a later one is far above it; with
            "safe" they follow its maximum, as all other kernels always do.
        out: array of q's library to write to, (B, Sq, Hq, Dv), q's dtype; not for JAX.
        return_lse: also return lse.

    Returns:
        out (B, Sq, Hq, Dv), or (out, lse) with lse (B, Hq, Sq): natural logarithm, float32
        (float64 where q is float64). A row that sees no key has out 0 and lse -inf.

    Raises:
        ValueError: a shape, stride or number that breaks this contract; `out` is read-only.
        TypeError: no array, an array of another library, or a wrong dtype.
        NotImplementedError: what this build or the device cannot compute.
        RuntimeError: the device or its driver failed.
        Nothing is written when one of the first three is raised.
    """
    call = _core.Call(False)
    set_options(call, scale, causal, window, softcap, dropout_p, seed, offset, softmax=softmax)
    operands = Operands(call, "q", q)
    views = read_qkv(operands, q, k, v, DENSE)
    read_score_terms(operands, bias, alibi_slopes, sinks)
    return forward(operands, views, out, return_lse)


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    dlse: Any = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    deterministic: bool = False,
) -> tuple[Any, ...]:
    """Gradients of `attention`; the probabilities are computed again from q, k and lse.

    With D_i = dout_i . out_i, the gradient in the softmax's argument is
    ds_ij = p_ij (dout_i . v_j - D_i + dlse_i); it passes on through softcap and scale.

    Args:
        dout: gradient of out, its shape and dtype.
        q, k, v: as given to `attention`, with the same options.
        out, lse: what `attention(..., return_lse=True)` returned.
        dlse: gradient of lse, its shape and dtype; None: zero.
        deterministic: the same bits at every run; always so on the CPU.
        Other options: as in `attention`.

    Returns:
        (dq, dk, dv), then dbias where bias is given (summed over the axes that it broadcasts),
        then dsinks where sinks is given. Each has the shape and dtype of what it is the gradient
        of.

    Raises:
        As `attention`.
    """
    call = _core.Call(True)
    set_options(
        call, scale, causal, window, softcap, dropout_p, seed, offset,
        deterministic=as_bool("deterministic", deterministic),
    )  # fmt: skip
    operands = Operands(call, "q", q)
    views = read_qkv(operands, q, k, v, DENSE)
    terms = read_score_terms(operands, bias, alibi_slopes, sinks)
    return backward(operands, views, terms, dout, out, lse, dlse)


def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    *,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    softmax: str = "auto",
    out: Any = None,
    return_lse: bool = False,
) -> Any:
    """`attention` on sequences of different lengths, packed one after another without padding.

    Args:
        q: (Tq, Hq, D), the tokens of all sequences.
        k: (Tk, Hkv, D).
        v: (Tk, Hkv, Dv).
        cu_seqlens_q: (B + 1,) int32, the first token of each sequence, and last their number;
            q's library, or NumPy for arrays in host memory.
        cu_seqlens_k: (B + 1,) int32, the same for k and v.
        max_seqlen_q: the longest sequence, a hint for planning; lengths on a device are never read
            back. Short ones with few KV heads are faster on Hopper where it is given.
        max_seqlen_k: the same for k and v.
        seqused_q: (B,) int32: only so many tokens of each sequence count.
        seqused_k: (B,) int32: the same for k and v.
        Other options: as in `attention`; i, j and the bias count within a sequence.

    Returns:
        out (Tq, Hq, Dv), or (out, lse) with lse (Hq, Tq). Tokens of no sequence get out 0 and
        lse -inf.

    Raises:
        As `attention`.
    """
    call = _core.Call(False)
    set_options(
        call, scale, causal, window, softcap, dropout_p, seed, offset,
        max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, softmax=softmax,
    )  # fmt: skip
    operands = Operands(call, "q", q)
    views = read_qkv(operands, q, k, v, PACKED)
    read_lengths(operands, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
    read_score_terms(operands, bias, alibi_slopes, sinks)
    return forward(operands, views, out, return_lse)


def attention_varlen_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    dlse: Any = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    deterministic: bool = False,
) -> tuple[Any, ...]:
    """Gradients of `attention_varlen`.

    Args:
        dout: (Tq, Hq, Dv), gradient of out.
        q, k, v, lengths and options: as given to `attention_varlen`.
        out, lse: what `attention_varlen(..., return_lse=True)` returned.
        dlse, deterministic: as in `attention_backward`.

    Returns:
        (dq, dk, dv[, dbias][, dsinks]) as `attention_backward`. Tokens that do not count have zero
        gradients.

    Raises:
        As `attention`.
    """
    call = _core.Call(True)
    set_options(
        call, scale, causal, window, softcap, dropout_p, seed, offset,
        deterministic=as_bool("deterministic", deterministic),
        max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
    )  # fmt: skip
    operands = Operands(call, "q", q)
    views = read_qkv(operands, q, k, v, PACKED)
    read_lengths(operands, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
    terms = read_score_terms(operands, bias, alibi_slopes, sinks)
    return backward(operands, views, terms, dout, out, lse, dlse)


def decode(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    seqlens_k: Any,
    block_table: Any = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    num_splits: int = 0,
    split_size: int | None = None,
    softmax: str = "auto",
    out: Any = None,
    return_lse: bool = False,
) -> Any:
    """`attention` of a few new queries to a cache of keys and values, split over the keys.

    Args:
        q: (B, Sq, Hq, D), the last Sq tokens of each sequence.
        k_cache: (B, Sk, Hkv, D), or (pages, page_size, Hkv, D) with `block_table`.
        v_cache: (B, Sk, Hkv, Dv) or (pages, page_size, Hkv, Dv).
        seqlens_k: (B,) int32, the keys that each sequence has; the memory behind them is not
            looked at. With `causal`, the last query sees key seqlens_k - 1.
        block_table: (B, max_pages) int32, the page of each stretch of page_size keys.
        num_splits: parts that the keys are cut into, computed side by side; 0: planned.
        split_size: keys of one part; fixes the bits of a row whatever its neighbours.
        Other options: as in `attention`.

    Returns:
        out (B, Sq, Hq, Dv), or (out, lse) with lse (B, Hq, Sq).

    Raises:
        As `attention`.
    """
    call = _core.Call(False)
    set_options(
        call, scale, causal, window, softcap, dropout_p, seed, offset,
        num_splits=as_int("num_splits", num_splits, _INT32),
        split_size=as_length("split_size", split_size, 1),
        softmax=softmax,
    )  # fmt: skip
    operands = Operands(call, "q", q)
    views = read_qkv(operands, q, k_cache, v_cache, DENSE, "k_cache", "v_cache")
    operands.read("seqused_k", seqlens_k, "seqlens_k")
    if block_table is not None:
        operands.read("block_table", block_table)
    read_score_terms(operands, bias, alibi_slopes, sinks)
    return forward(operands, views, out, return_lse)


def merge_states(outs: Any, lses: Any) -> tuple[Any, Any]:
    """Joins results of `attention` over disjoint sets of keys into that over all of them.

    lse = log(sum_n exp(lses[n])); out = sum_n exp(lses[n] - lse) outs[n].

    Args:
        outs: sequence of arrays (B, Sq, Hq, Dv) or (Tq, Hq, Dv), or one array that stacks them
            along a new first axis.
        lses: sequence of arrays (B, Hq, Sq) or (Hq, Tq), or one stacked array; float32 (float64
            where outs are float64).

    Returns:
        (out, lse) with the shapes of a part. A row that no part sees has out 0 and lse -inf.

    Raises:
        As `attention`.
    """
    first = first_part("outs", outs)
    operands = Operands(_core.Call(False), "outs", first)
    out_views = parts(operands, "outs", outs)
    lse_views = parts(operands, "lses", lses)
    if len(out_views) != len(lse_views):
        raise ValueError(f"lses: {len(lse_views)} parts, expected {len(out_views)}, those of outs")
    out, out_view = operands.allocate("outs", out_views[0].shape, out_views[0].dtype)
    lse, lse_view = operands.allocate("lses", lse_views[0].shape, lse_views[0].dtype)
    _core.merge_states(out_views, lse_views, out_view, lse_view, operands.stream or 0)
    return operands.finish(out), operands.finish(lse)


def dropout_mask(
    shape: Sequence[int], p: float, seed: int, offset: int = 0, *, like: Any = None
) -> Any:
    """The weights that dropout keeps: uint8, 1 where kept; a function of the coordinates alone.

    Philox4x32-10 (Salmon et al. 2011) with key (seed low, seed high 32 bits) and counter
    (j div 8, i, b * Hq + h, offset mod 2^32) gives eight 16-bit numbers, low half first; weight
    (b, h, i, j) is kept iff number j mod 8 >= round(65536 p), and then multiplied by
    1 / (1 - round(65536 p) / 65536).

    Args:
        shape: (B, Hq, Sq, Sk).
        p: probability of dropping, in [0, 1).
        seed: 64-bit seed.
        offset: 64-bit offset.
        like: an array whose library and device the mask is to have; None: NumPy.

    Returns:
        The mask, of that shape.

    Raises:
        ValueError or TypeError naming the argument.
    """
    extents = as_shape("shape", shape)
    if len(extents) != 4:
        raise ValueError(f"shape: {len(extents)} axes, expected 4 (B, Hq, Sq, Sk)")
    probability = as_float("p", p)
    if seed is None:
        raise TypeError("seed: expected an int, got None")
    key, stream_offset = as_seed(seed, offset, probability)
    if not 0 <= probability < 1:
        raise ValueError(f"p: {probability}, expected a number in [0, 1)")
    if like is None:
        import numpy as np

        like = np.empty(0)
    operands = Operands(_core.Call(False), "like", like)
    mask, view = operands.allocate("mask", extents, "uint8")
    _core.dropout_mask(view, probability, key, stream_offset, operands.stream or 0)
    return operands.finish(mask)
