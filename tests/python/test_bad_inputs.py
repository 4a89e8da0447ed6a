# SPDX-License-Identifier: Apache-2.0
"""A table of bad inputs: each raises the right class, names the argument, and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import onchip

Change = Any  # a value, or a function that makes one from the good value


class Bad(NamedTuple):
    function: str
    argument: str
    change: Change
    error: type[Exception]
    more: dict[str, Change] = {}  # noqa: RUF012  (never changed)


def floats(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def f32(*shape: int) -> Callable[[Any], Any]:
    return lambda _: floats(*shape)


def cast(dtype: Any) -> Callable[[Any], Any]:
    return lambda good: good.astype(dtype)


def every_second(good: Any) -> Any:
    wide = np.zeros((*good.shape[:-1], 2 * good.shape[-1]), good.dtype)
    return wide[..., ::2]


def frozen(good: Any) -> Any:
    good.flags.writeable = False
    return good


def overlapping_itself(good: Any) -> Any:
    return np.lib.stride_tricks.as_strided(good, strides=(0, *good.strides[1:]))


# ---------------------------------------------------------------- good calls


def dense() -> dict[str, Any]:
    return {
        "q": floats(2, 5, 4, 8), "k": floats(2, 7, 2, 8), "v": floats(2, 7, 2, 6),
        "out": np.full((2, 5, 4, 6), 7, np.float32),
    }  # fmt: skip


def dense_backward() -> dict[str, Any]:
    good = dense()
    out, lse = onchip.attention(good["q"], good["k"], good["v"], return_lse=True)
    return {**good, "out": out, "lse": lse, "dout": floats(2, 5, 4, 6)}


def packed() -> dict[str, Any]:
    return {
        "q": floats(9, 4, 8), "k": floats(10, 2, 8), "v": floats(10, 2, 6),
        "cu_seqlens_q": ints(0, 4, 9), "cu_seqlens_k": ints(0, 7, 10),
        "out": np.full((9, 4, 6), 7, np.float32),
    }  # fmt: skip


def packed_backward() -> dict[str, Any]:
    good = packed()
    del good["out"]
    out, lse = onchip.attention_varlen(**good, return_lse=True)
    return {**good, "out": out, "lse": lse, "dout": floats(9, 4, 6)}


def cached() -> dict[str, Any]:
    return {
        "q": floats(2, 1, 4, 8), "k_cache": floats(2, 7, 2, 8), "v_cache": floats(2, 7, 2, 6),
        "seqlens_k": ints(3, 7), "out": np.full((2, 1, 4, 6), 7, np.float32),
    }  # fmt: skip


def paged() -> dict[str, Any]:
    return {
        **cached(), "k_cache": floats(5, 4, 2, 8), "v_cache": floats(5, 4, 2, 6),
        "block_table": ints(0, 1, 4, 2).reshape(2, 2),
    }  # fmt: skip


def parts() -> dict[str, Any]:
    return {
        "outs": [floats(2, 5, 4, 6), floats(2, 5, 4, 6)],
        "lses": [floats(2, 4, 5), floats(2, 4, 5)],
    }


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    "attention": (onchip.attention, dense),
    "backward": (onchip.attention_backward, dense_backward),
    "varlen": (onchip.attention_varlen, packed),
    "varlen_backward": (onchip.attention_varlen_backward, packed_backward),
    "decode": (onchip.decode, cached),
    "paged": (onchip.decode, paged),
    "merge_states": (onchip.merge_states, parts),
    "dropout_mask": (
        onchip.dropout_mask,
        lambda: {"shape": (1, 2, 3, 4), "p": 0.5, "seed": 1, "offset": 0},
    ),
    "plan": (
        onchip.plan,
        lambda: {"q_shape": (2, 5, 4, 8), "k_shape": (2, 7, 2, 8), "device": "H200"},
    ),
    "io_model": (
        onchip.io_model,
        lambda: {"q_shape": (2, 5, 4, 8), "k_shape": (2, 7, 2, 8)},
    ),
    "set_num_threads": (onchip.set_num_threads, lambda: {"count": 1}),
    "device_info": (onchip.device_info, lambda: {"name": "H200"}),
}

NAN, INF = float("nan"), float("inf")

TABLE = [
    # No arrays.
    Bad("attention", "q", None, TypeError),
    Bad("attention", "q", [[1.0]], TypeError),
    Bad("attention", "q", "text", TypeError),
    Bad("attention", "k", 3.0, TypeError),
    Bad("attention", "v", np.float32(1), TypeError),
    Bad("attention", "v", lambda v: v.tobytes(), TypeError),
    Bad("attention", "q", np.ma.masked_array, TypeError),
    Bad("attention", "out", [0.0], TypeError),
    Bad("attention", "bias", [0.0], TypeError),
    Bad("attention", "alibi_slopes", 0.5, TypeError),
    # Wrong types of element.
    Bad("attention", "q", cast(np.int64), TypeError),
    Bad("attention", "q", cast(np.int32), TypeError),
    Bad("attention", "q", cast(np.uint8), TypeError),
    Bad("attention", "q", cast(bool), TypeError),
    Bad("attention", "q", cast(np.complex64), TypeError),
    Bad("attention", "q", cast(">f4"), TypeError),
    Bad("attention", "q", cast(object), TypeError),
    Bad("attention", "k", cast(np.float64), TypeError),
    Bad("attention", "v", cast(np.float16), TypeError),
    Bad("attention", "out", cast(np.float64), TypeError),
    Bad("attention", "bias", floats(1, 1, 1, 7, dtype=np.float16), TypeError),
    Bad("attention", "alibi_slopes", floats(4, dtype=np.float64), TypeError),
    Bad("attention", "sinks", floats(4, dtype=np.float16), TypeError),
    # Shapes.
    Bad("attention", "q", f32(5, 4, 8), ValueError),
    Bad("attention", "q", f32(1, 2, 5, 4, 8), ValueError),
    Bad("attention", "q", f32(1, 1, 2, 5, 4, 8), ValueError),
    Bad("attention", "q", np.zeros((), np.float32), ValueError),
    Bad("attention", "k", f32(7, 2, 8), ValueError),
    Bad("attention", "v", f32(2, 7, 2, 6, 1), ValueError),
    Bad("attention", "k", f32(3, 7, 2, 8), ValueError),
    Bad("attention", "k", f32(2, 7, 3, 8), ValueError),
    Bad("attention", "k", f32(2, 7, 2, 16), ValueError),
    Bad("attention", "v", f32(3, 7, 2, 6), ValueError),
    Bad("attention", "v", f32(2, 8, 2, 6), ValueError),
    Bad("attention", "v", f32(2, 7, 4, 6), ValueError),
    Bad("attention", "out", f32(2, 5, 4, 8), ValueError),
    Bad("attention", "out", f32(2, 6, 4, 6), ValueError),
    Bad("attention", "out", f32(5, 4, 6), ValueError),
    Bad("attention", "bias", floats(4, 5, 7), ValueError),
    Bad("attention", "bias", floats(2, 4, 5, 6), ValueError),
    Bad("attention", "bias", floats(1, 2, 5, 7), ValueError),
    Bad("attention", "alibi_slopes", floats(3), ValueError),
    Bad("attention", "alibi_slopes", floats(3, 4), ValueError),
    Bad("attention", "sinks", floats(3), ValueError),
    Bad("attention", "sinks", floats(2, 4), ValueError),
    # Memory.
    Bad("attention", "q", every_second, ValueError),
    Bad("attention", "k", every_second, ValueError),
    Bad("attention", "v", every_second, ValueError),
    Bad("attention", "out", every_second, ValueError),
    Bad("attention", "out", frozen, ValueError),
    Bad("attention", "out", overlapping_itself, ValueError),
    # Options.
    Bad("attention", "scale", "1", TypeError),
    Bad("attention", "scale", floats(1), TypeError),
    Bad("attention", "scale", True, TypeError),
    Bad("attention", "scale", NAN, ValueError),
    Bad("attention", "scale", 10**400, ValueError),
    Bad("attention", "causal", 1, TypeError),
    Bad("attention", "causal", "yes", TypeError),
    Bad("attention", "causal", None, TypeError),
    Bad("attention", "window", 5, TypeError),
    Bad("attention", "window", "ab", TypeError),
    Bad("attention", "window", (1.5, 0), TypeError),
    Bad("attention", "window", (None, 0), TypeError),
    Bad("attention", "window", (1, 2, 3), ValueError),
    Bad("attention", "window", (-2, 0), ValueError),
    Bad("attention", "softcap", None, TypeError),
    Bad("attention", "softcap", -1.0, ValueError),
    Bad("attention", "softcap", INF, ValueError),
    Bad("attention", "dropout_p", "0.1", TypeError),
    Bad("attention", "dropout_p", 1.0, ValueError, {"seed": 1}),
    Bad("attention", "dropout_p", -0.1, ValueError, {"seed": 1}),
    Bad("attention", "dropout_p", NAN, ValueError, {"seed": 1}),
    Bad("attention", "seed", None, ValueError, {"dropout_p": 0.1}),
    Bad("attention", "seed", 1.5, TypeError),
    Bad("attention", "seed", -1, ValueError),
    Bad("attention", "seed", 2**64, ValueError),
    Bad("attention", "offset", None, TypeError),
    Bad("attention", "offset", -1, ValueError),
    Bad("attention", "softmax", "fast", ValueError),
    Bad("attention", "softmax", True, TypeError),
    Bad("attention", "softmax", None, TypeError),
    Bad("attention", "return_lse", 1, TypeError),
    # Backward.
    Bad("backward", "dout", None, TypeError),
    Bad("backward", "dout", cast(np.float64), TypeError),
    Bad("backward", "dout", f32(2, 5, 4, 8), ValueError),
    Bad("backward", "dout", every_second, ValueError),
    Bad("backward", "out", f32(2, 5, 4, 8), ValueError),
    Bad("backward", "lse", None, TypeError),
    Bad("backward", "lse", cast(np.float64), TypeError),
    Bad("backward", "lse", f32(2, 5, 4), ValueError),
    Bad("backward", "dlse", floats(4, 5), ValueError),
    Bad("backward", "deterministic", "yes", TypeError),
    Bad("backward", "seed", None, ValueError, {"dropout_p": 0.1}),
    # Variable length.
    Bad("varlen", "q", f32(1, 9, 4, 8), ValueError),
    Bad("varlen", "cu_seqlens_q", None, TypeError),
    Bad("varlen", "cu_seqlens_q", [0, 4, 9], TypeError),
    Bad("varlen", "cu_seqlens_q", cast(np.int64), TypeError),
    Bad("varlen", "cu_seqlens_k", cast(np.float32), TypeError),
    Bad("varlen", "cu_seqlens_q", lambda x: x[None], ValueError),
    Bad("varlen", "cu_seqlens_k", ints(0, 3, 7, 10), ValueError),
    Bad("varlen", "cu_seqlens_q", ints(0, 5, 4), ValueError),
    Bad("varlen", "cu_seqlens_k", ints(0, 7, 11), ValueError),
    Bad("varlen", "cu_seqlens_q", ints(-1, 4, 9), ValueError),
    Bad("varlen", "max_seqlen_q", 4.0, TypeError),
    Bad("varlen", "max_seqlen_k", -1, ValueError),
    Bad("varlen", "seqused_q", ints(4), ValueError),
    Bad("varlen", "seqused_q", ints(5, 5), ValueError),
    Bad("varlen", "seqused_k", ints(-1, 3), ValueError),
    Bad("varlen", "seqused_k", np.array([1, 2]), TypeError),
    Bad("varlen", "softmax", "", ValueError),
    Bad("varlen", "out", f32(2, 9, 4, 6), ValueError),
    Bad("varlen_backward", "dout", f32(9, 4, 8), ValueError),
    Bad("varlen_backward", "lse", f32(9, 4), ValueError),
    Bad("varlen_backward", "cu_seqlens_k", ints(0, 10), ValueError),
    # Decoding.
    Bad("decode", "k_cache", f32(7, 2, 8), ValueError),
    Bad("decode", "k_cache", f32(2, 7, 3, 8), ValueError),
    Bad("decode", "k_cache", every_second, ValueError),
    Bad("decode", "v_cache", cast(np.float16), TypeError),
    Bad("decode", "v_cache", f32(2, 8, 2, 6), ValueError),
    Bad("decode", "seqlens_k", None, TypeError),
    Bad("decode", "seqlens_k", 3, TypeError),
    Bad("decode", "seqlens_k", cast(np.int64), TypeError),
    Bad("decode", "seqlens_k", ints(3, 7, 1), ValueError),
    Bad("decode", "seqlens_k", ints(3, 8), ValueError),
    Bad("decode", "seqlens_k", ints(-1, 7), ValueError),
    Bad("decode", "num_splits", 1.5, TypeError),
    Bad("decode", "num_splits", -1, ValueError),
    Bad("decode", "split_size", 0, ValueError),
    Bad("decode", "split_size", "4", TypeError),
    Bad("decode", "softmax", "Safe", ValueError),
    Bad("paged", "block_table", cast(np.int64), TypeError),
    Bad("paged", "block_table", lambda x: x[0], ValueError),
    Bad("paged", "block_table", lambda x: x[:1], ValueError),
    Bad("paged", "block_table", lambda x: x + np.int32(3), ValueError),
    Bad("paged", "block_table", lambda x: x - np.int32(1), ValueError),
    Bad("paged", "seqlens_k", ints(3, 9), ValueError),
    # The others.
    Bad("merge_states", "outs", None, TypeError),
    Bad("merge_states", "outs", [], ValueError),
    Bad("merge_states", "outs", [1.0], TypeError),
    Bad("merge_states", "outs", lambda x: [x[0], x[1].astype(np.float64)], TypeError),
    Bad("merge_states", "outs", lambda x: [x[0], x[1][:1]], ValueError),
    Bad("merge_states", "lses", lambda x: x[:1], ValueError),
    Bad("merge_states", "lses", lambda x: [x[0], x[1].astype(np.float16)], TypeError),
    Bad("merge_states", "lses", lambda x: [x[0], x[1][:, :2]], ValueError),
    Bad("dropout_mask", "shape", 4, TypeError),
    Bad("dropout_mask", "shape", (1, 2, 3), ValueError),
    Bad("dropout_mask", "shape", (1, 2, 3, -1), ValueError),
    Bad("dropout_mask", "shape", (1, 2, 3, 1.5), TypeError),
    Bad("dropout_mask", "p", 1.0, ValueError),
    Bad("dropout_mask", "p", None, TypeError),
    Bad("dropout_mask", "seed", None, TypeError),
    Bad("dropout_mask", "like", "numpy", TypeError),
    Bad("plan", "device", "H9000", ValueError),
    Bad("plan", "device", 3, TypeError),
    Bad("plan", "dtype", "int8", ValueError),
    Bad("plan", "dtype", np.float32, TypeError),
    Bad("plan", "q_shape", "abc", TypeError),
    Bad("plan", "q_shape", (8,), ValueError),
    Bad("plan", "q_shape", (2, 5, 3, 8), ValueError, {"argument": "k"}),
    Bad("plan", "num_splits", "many", TypeError),
    Bad("plan", "softmax", 1, TypeError),
    Bad("plan", "softmax", "unsafe", ValueError),
    Bad("io_model", "k_shape", (2, 7, 2, 9), ValueError),
    Bad("io_model", "tile_q", 0, ValueError),
    Bad("set_num_threads", "count", -1, ValueError),
    Bad("set_num_threads", "count", 1.0, TypeError),
    Bad("device_info", "name", "H9000", ValueError),
]  # fmt: skip


def test_the_table_is_long_enough() -> None:
    assert len(TABLE) >= 60


@pytest.mark.parametrize(
    "bad", TABLE, ids=[f"{n}-{b.function}-{b.argument}" for n, b in enumerate(TABLE)]
)
def test_bad_input(bad: Bad) -> None:
    function, good = FUNCTIONS[bad.function]
    arguments = good()
    change = bad.change
    value = change(arguments.get(bad.argument)) if callable(change) else change
    named = {"device": r"\bH9000\b|\bdevice\b", "name": r"H9000"}.get(
        bad.argument, rf"\b{bad.argument}\b"
    )
    changed = {**bad.more}
    if "argument" in changed:  # the message names another one
        named = rf"\b{changed.pop('argument')}\b"
    arguments.update(changed)
    arguments[bad.argument] = value
    written = arguments.get("out")
    before = written.tobytes() if isinstance(written, np.ndarray) else b""
    with pytest.raises(bad.error, match=named) as caught:
        function(**arguments)
    assert type(caught.value) is bad.error
    assert str(caught.value).startswith(tuple("abcdefghijklmnopqrstuvwxyz"))
    if isinstance(written, np.ndarray):
        assert written.tobytes() == before


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_good_call_is_good(name: str) -> None:
    function, good = FUNCTIONS[name]
    try:
        function(**good())
    finally:
        onchip.set_num_threads(0)


def test_options_are_keyword_only() -> None:
    good = dense()
    with pytest.raises(TypeError, match="positional"):
        onchip.attention(good["q"], good["k"], good["v"], 0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="casual"):
        onchip.attention(good["q"], good["k"], good["v"], casual=True)  # type: ignore[call-arg]


def test_an_error_names_the_heads() -> None:
    good = dense()
    message = re.escape("k: heads_kv 3 does not divide heads_q 4")
    with pytest.raises(ValueError, match=message):
        onchip.attention(good["q"], floats(2, 7, 3, 8), floats(2, 7, 3, 6))
