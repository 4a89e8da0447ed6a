# SPDX-License-Identifier: Apache-2.0
"""The steps that the functions of `_call` are made of."""

from __future__ import annotations

from typing import Any

from onchip import _core
from onchip._arrays import Operands
from onchip._scalars import as_bool

DENSE = (4, "4 (batch, seqlen, heads, dim)")
PACKED = (3, "3 (tokens, heads, dim)")


def set_options(
    call: _core.Call,
    scale: Any,
    causal: Any,
    window: Any,
    softcap: Any,
    dropout_p: Any,
    seed: Any,
    offset: Any,
    *,
    deterministic: bool = False,
    num_splits: int = 1,
    split_size: int = 0,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    softmax: Any = "auto",
) -> None:
    """The core checks all of them but deterministic, num_splits and split_size."""
    call.options(
        scale, causal, window, softcap, dropout_p, seed, offset, max_seqlen_q, max_seqlen_k,
        softmax, deterministic, num_splits, split_size,
    )  # fmt: skip


def read_qkv(
    operands: Operands,
    q: Any,
    k: Any,
    v: Any,
    axes: tuple[int, str],
    k_name: str = "k",
    v_name: str = "v",
) -> tuple[_core.Tensor, _core.Tensor, _core.Tensor]:
    # One by one: what has a name outlives an exception, and no deleter runs in the midst of it.
    q_view = operands.take("q", q)
    k_view = operands.take(k_name, k)
    v_view = operands.take(v_name, v)
    operands.call.set_qkv(q_view, k_view, v_view, *axes)
    return q_view, k_view, v_view


def read_lengths(
    operands: Operands, cu_seqlens_q: Any, cu_seqlens_k: Any, seqused_q: Any, seqused_k: Any
) -> None:
    operands.read("cu_seqlens_q", cu_seqlens_q)
    operands.read("cu_seqlens_k", cu_seqlens_k)
    if seqused_q is not None:
        operands.read("seqused_q", seqused_q)
    if seqused_k is not None:
        operands.read("seqused_k", seqused_k)


_Terms = tuple["_core.Tensor | None", "_core.Tensor | None"]


def read_score_terms(operands: Operands, bias: Any, alibi_slopes: Any, sinks: Any) -> _Terms:
    if alibi_slopes is not None:
        operands.read("alibi_slopes", alibi_slopes)
    return (
        None if bias is None else operands.read("bias", bias),
        None if sinks is None else operands.read("sinks", sinks),
    )


def forward(operands: Operands, views: tuple[_core.Tensor, ...], out: Any, return_lse: Any) -> Any:
    want_lse = as_bool("return_lse", return_lse)
    q = views[0]
    made = lse = None
    if out is not None:
        operands.write("out", out)
    else:
        made = operands.create("out", operands.call.out_shape(), q.dtype)
    if want_lse:
        *batch, rows, heads, _ = q.shape
        lse = operands.create("lse", (*batch, heads, rows), statistics(q.dtype))
    operands.run()
    result = out if made is None else operands.finish(made)
    return (result, operands.finish(lse)) if want_lse else result


def backward(
    operands: Operands,
    views: tuple[_core.Tensor, ...],
    terms: _Terms,
    dout: Any,
    out: Any,
    lse: Any,
    dlse: Any,
) -> tuple[Any, ...]:
    operands.read("dout", dout)
    operands.read("out", out)
    operands.read("lse", lse)
    if dlse is not None:
        operands.read("dlse", dlse)
    made = [
        operands.create("d" + view.name, view.shape, view.dtype)
        for view in (*views, *terms)
        if view is not None
    ]
    operands.run()
    return tuple(operands.finish(x) for x in made)


def statistics(dtype: str) -> str:
    """The dtype of lse, slopes and sinks beside a q of `dtype`."""
    return "float64" if dtype == "float64" else "float32"


def first_part(name: str, given: Any) -> Any:
    """One of the parts of a sequence or of a stacked array: it tells the library."""
    if not isinstance(given, (list, tuple)):
        return given
    if not given:
        raise ValueError(f"{name}: no part, expected at least one")
    return given[0]


def parts(operands: Operands, name: str, given: Any) -> list[_core.Tensor]:
    """The parts of a sequence of arrays or of one stacked array."""
    if isinstance(given, (list, tuple)):
        return [operands.take(f"{name}[{n}]", part) for n, part in enumerate(given)]
    stacked = operands.take(name, given).split()
    if not stacked:
        raise ValueError(f"{name}: no part, expected at least one")
    return stacked
