# SPDX-License-Identifier: Apache-2.0
"""Plans and predictions, for this machine and for devices that need not be there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onchip import _core
from onchip._core import IoModel, Plan
from onchip._scalars import as_bool, as_choice, as_float, as_int, as_shape, as_window

_DTYPES = ("float64", "float32", "float16", "bfloat16")
_EXTENT = range(2**63)


def devices() -> tuple[str, ...]:
    """Names of the devices that `plan` knows: "cpu" (this machine) and some GPUs."""
    return ("cpu", *_core.known_devices())


def plan(
    q_shape: Any,
    k_shape: Any,
    v_shape: Any = None,
    *,
    dtype: str | None = None,
    device: str | None = None,
    backward: bool = False,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    bias_shape: Sequence[int] | None = None,
    alibi: bool = False,
    sinks: bool = False,
    dropout_p: float = 0.0,
    deterministic: bool = False,
    return_lse: bool = False,
    batch: int | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    max_pages: int | None = None,
    num_splits: int = 1,
    split_size: int | None = None,
) -> Plan:
    """How a problem is going to be computed, and what that is predicted to cost.

    A pure function of its arguments: no array is needed and no GPU is asked.

    Args:
        q_shape: (B, Sq, Hq, D), or (Tq, Hq, D) with `batch`; or an array, whose shape is taken.
        k_shape: (B, Sk, Hkv, D), (Tk, Hkv, D), or (pages, page_size, Hkv, D) with `max_pages`.
        v_shape: the same with Dv; None: that of k.
        dtype: "float64", "float32", "float16" or "bfloat16"; None: that of the array q_shape, else
            bfloat16.
        device: a name in `devices()`; None: "cpu".
        backward: plan the backward pass.
        scale, causal, window, softcap, dropout_p, deterministic, return_lse: as in `attention`.
        bias_shape: (B|1, Hq|1, Sq|1, Sk|1), in dtype.
        alibi, sinks: whether these are given.
        batch: number of packed sequences.
        max_seqlen_q, max_seqlen_k: the longest packed sequence, a hint.
        max_pages: pages of the longest sequence of a paged cache.
        num_splits, split_size: as in `decode`, but one part unless asked for.

    Returns:
        A `Plan`: its numbers as attributes, `explain()` in words, `json()` and `as_dict()`.

    Raises:
        ValueError, TypeError, NotImplementedError: as `attention`.
    """
    name = as_choice("dtype", _dtype_of(q_shape) if dtype is None else dtype, _DTYPES)
    where = None if device is None else _core.device_info(_device_name(device))
    q = as_shape("q_shape", q_shape)
    k = as_shape("k_shape", k_shape)
    v = k if v_shape is None else as_shape("v_shape", v_shape)
    if len(q) < 3 or not v:
        raise ValueError(f"q_shape: {q}, expected (batch, seqlen, heads, dim)")
    left, right = as_window(window)
    is_backward = as_bool("backward", backward)
    call = _core.Call(is_backward)
    call.options(
        None if scale is None else as_float("scale", scale),
        as_bool("causal", causal),
        left,
        right,
        as_float("softcap", softcap),
        as_float("dropout_p", dropout_p),
        0,
        0,
        as_bool("deterministic", deterministic),
        as_int("num_splits", num_splits, range(2**31)),
        _extent("split_size", split_size),
        _extent("max_seqlen_q", max_seqlen_q),
        _extent("max_seqlen_k", max_seqlen_k),
    )

    def give(field: str, shape: Sequence[int], kind: str) -> None:
        cuda = where is not None and where.type == "cuda"
        call.set(field, _core.Tensor.planned(field, shape, kind, cuda, 0))

    stats = "float64" if name == "float64" else "float32"
    heads = q[-2]
    out, lse = (*q[:-1], v[-1]), (*q[:-3], q[-2], q[-3])
    given: list[tuple[str, Sequence[int], str]] = [("q", q, name), ("k", k, name), ("v", v, name)]
    if bias_shape is not None:
        given.append(("bias", as_shape("bias_shape", bias_shape), name))
    if as_bool("alibi", alibi):
        given.append(("alibi_slopes", (heads,), stats))
    if as_bool("sinks", sinks):
        given.append(("sinks", (heads,), stats))
    if is_backward:
        given += [("d" + field, shape, kind) for field, shape, kind in given if field[0] != "a"]
        given.append(("dout", out, name))
    given.append(("out", out, name))
    if as_bool("return_lse", return_lse) or is_backward:
        given.append(("lse", lse, stats))
    if batch is not None:
        sequences = as_int("batch", batch, range(2**31))
        given += [(f"cu_seqlens_{side}", (sequences + 1,), "int32") for side in "qk"]
    if max_pages is not None:
        given.append(("seqused_k", q[:1], "int32"))
        given.append(("block_table", (q[0], as_int("max_pages", max_pages, _EXTENT)), "int32"))
    for field, shape, kind in given:
        give(field, shape, kind)
    return call.plan(where)


def io_model(
    q_shape: Any,
    k_shape: Any,
    v_shape: Any = None,
    *,
    dtype: str | None = None,
    tile_q: int = 64,
    tile_k: int = 64,
    causal: bool = False,
) -> IoModel:
    """Bytes that attention moves to and from device memory, by formulas to check by hand.

    The standard algorithm reads and writes the matrices S and P; the tiled one reads K and V once
    for each tile of queries (Dao et al. 2022, arXiv:2205.14135, theorem 2). No device, no cache.

    Args:
        q_shape: (B, Sq, Hq, D) or an array.
        k_shape: (B, Sk, Hkv, D) or an array.
        v_shape: (B, Sk, Hkv, Dv); None: that of k.
        dtype: as in `plan`.
        tile_q, tile_k: Br and Bc, rows and columns of a tile of scores.
        causal: hide the keys after the query; tiles without a visible score are skipped.

    Returns:
        An `IoModel`: bytes, FLOP and numbers of tiles, summed over batch and heads.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    name = as_choice("dtype", _dtype_of(q_shape) if dtype is None else dtype, _DTYPES)
    q = as_shape("q_shape", q_shape)
    k = as_shape("k_shape", k_shape)
    v = k if v_shape is None else as_shape("v_shape", v_shape)
    for argument, shape in (("q_shape", q), ("k_shape", k), ("v_shape", v)):
        if len(shape) != 4:
            raise ValueError(f"{argument}: {shape}, expected (batch, seqlen, heads, dim)")
    if q[0] != k[0] or q[3] != k[3]:
        raise ValueError(f"k_shape: {k}, expected the batch and dim of q_shape {q}")
    if v[:3] != k[:3]:
        raise ValueError(f"v_shape: {v}, expected {k[:3]} and then any dim")
    size = {"float64": 8, "float32": 4}.get(name, 2)
    tiles = as_int("tile_q", tile_q), as_int("tile_k", tile_k)
    return _core.io_model(
        q[0], q[2], k[2], q[1], k[1], q[3], v[3], size, *tiles, as_bool("causal", causal)
    )


def _extent(name: str, x: Any) -> int:
    return 0 if x is None else as_int(name, x, _EXTENT)


def _device_name(x: Any) -> str:
    if not isinstance(x, str):
        raise TypeError(f"device: expected a str, got {type(x).__name__}")
    return x


def _dtype_of(x: Any) -> str:
    dtype = getattr(x, "dtype", None)
    return "bfloat16" if dtype is None else str(getattr(dtype, "name", dtype)).rpartition(".")[2]
