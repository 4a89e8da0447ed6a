# SPDX-License-Identifier: Apache-2.0
"""Plans and predictions, for this machine and for devices that need not be there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onchip import _core
from onchip._core import IoModel, Plan
from onchip._scalars import as_bool, as_choice, as_int, as_length, as_shape
from onchip._steps import set_options, statistics

_DTYPES = ("float64", "float32", "float16", "bfloat16")


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
    softmax: str = "auto",
) -> Plan:
    """How a problem is going to be computed, and what that is predicted to cost.

    No array is needed, and no GPU but where `device` is one of this machine.

    Args:
        q_shape: (B, Sq, Hq, D), or (Tq, Hq, D) with `batch`; or an array, whose shape is taken.
        k_shape: (B, Sk, Hkv, D), (Tk, Hkv, D), or (pages, page_size, Hkv, D) with `max_pages`.
        v_shape: the same with Dv; None: that of k.
        dtype: "float64", "float32", "float16" or "bfloat16"; None: that of the array q_shape, else
            bfloat16.
        device: a name in `devices()`, which need not be here, or "cuda:<index>", a GPU of this
            machine; None: "cpu".
        backward: plan the backward pass.
        scale, causal, window, softcap, dropout_p, deterministic, return_lse: as in `attention`.
        bias_shape: (B|1, Hq|1, Sq|1, Sk|1), in dtype.
        alibi, sinks: whether these are given.
        batch: number of packed sequences.
        max_seqlen_q, max_seqlen_k: the longest packed sequence, a hint.
        max_pages: pages of the longest sequence of a paged cache.
        num_splits, split_size: as in `decode`, but one part unless asked for.
        softmax: as in `attention`; no matter backward.

    Returns:
        A `Plan`: its numbers as attributes, `explain()` in words, `json()` and `as_dict()`.

    Raises:
        ValueError, TypeError, NotImplementedError: as `attention`.
    """
    name = as_choice("dtype", _dtype_of(q_shape) if dtype is None else dtype, _DTYPES)
    where = None if device is None else _core.device_info(_device_name(device))
    q, k, v = _shapes(q_shape, k_shape, v_shape)
    call = _core.Call(as_bool("backward", backward))
    set_options(
        call, scale, causal, window, softcap, dropout_p, 0, 0,
        deterministic=as_bool("deterministic", deterministic),
        num_splits=as_int("num_splits", num_splits, range(2**31)),
        split_size=as_length("split_size", split_size),
        max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, softmax=softmax,
    )  # fmt: skip
    inputs = {"q": q, "k": k, "v": v}
    if bias_shape is not None:
        inputs["bias"] = as_shape("bias_shape", bias_shape)
    if as_bool("sinks", sinks):
        inputs["sinks"] = q[-2:-1]
    given: dict[str, tuple[int, ...]] = dict(inputs)
    if as_bool("alibi", alibi):
        given["alibi_slopes"] = q[-2:-1]
    if batch is not None:
        sequences = as_int("batch", batch, range(2**31))
        given["cu_seqlens_q"] = given["cu_seqlens_k"] = (sequences + 1,)
    if max_pages is not None:
        given["seqused_k"] = q[:1]
        given["block_table"] = (q[0], as_int("max_pages", max_pages, range(2**31)))
    given["out"] = (*q[:-1], v[-1])
    if as_bool("return_lse", return_lse) or backward:
        given["lse"] = (*q[:-3], q[-2], q[-3])
    if backward:
        given["dout"] = given["out"]
        given.update({"d" + field: shape for field, shape in inputs.items()})
    cuda = where is not None and where.type == "cuda"
    for field, shape in given.items():
        kind = _field_dtype(field, name)
        call.set(field, _core.Tensor.planned(field, shape, kind, cuda, 0))
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
    q, k, v = _shapes(q_shape, k_shape, v_shape)
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


def _shapes(q_shape: Any, k_shape: Any, v_shape: Any) -> list[tuple[int, ...]]:
    given = {"q_shape": q_shape, "k_shape": k_shape}
    given["v_shape"] = k_shape if v_shape is None else v_shape
    shapes = {name: as_shape(name, shape) for name, shape in given.items()}
    for name, shape in shapes.items():
        if len(shape) not in (3, 4):
            raise ValueError(f"{name}: {shape}, expected (batch, seqlen, heads, dim)")
    return list(shapes.values())


def _field_dtype(field: str, dtype: str) -> str:
    if field in ("lse", "alibi_slopes", "sinks", "dsinks"):
        return statistics(dtype)
    return "int32" if field.startswith(("cu_seqlens", "seqused", "block")) else dtype


def _device_name(x: Any) -> str:
    if not isinstance(x, str):
        raise TypeError(f"device: expected a str, got {type(x).__name__}")
    return x


def _dtype_of(x: Any) -> str:
    dtype = getattr(x, "dtype", None)
    return "bfloat16" if dtype is None else str(getattr(dtype, "name", dtype)).rpartition(".")[2]
