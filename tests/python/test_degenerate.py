# SPDX-License-Identifier: Apache-2.0
"""Every row of the contract's table of degenerate cases, through Python."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import library
import onchip
import oracle
from casefile import Case
from comparison import expect_right, expect_within
from kinds import GPU_SAMPLE, Array, Kind, gpu_params, kind_of
from poison import poisoned_allocations
from problems import eighths

# Results (batch, rows or keys, heads, dim); of the others the heads are the second axis.
BY_ROW = ("out", "dq", "dk", "dv")


@dataclass
class Arena:
    """Where the table's rows are tried: float64 and float32 on the CPU, or one kind on a GPU."""

    kinds: list[Kind]
    gpu: bool

    def dense(
        self, rng: np.random.Generator, batch: int, rows: int, keys: int, heads: int = 2, **o: Any
    ) -> Case:
        dim_v = 16 if self.gpu else 6
        inputs = {
            "q": eighths(rng, batch, rows, heads, 8),
            "k": eighths(rng, batch, keys, heads, 8),
            "v": eighths(rng, batch, keys, heads, dim_v),
            "dout": eighths(rng, batch, rows, heads, dim_v),
        }
        return Case("dense", "dense", inputs, o, {}, 0.0)

    def results(self, case: Case) -> dict[str, Array]:
        """By the first kind, in poisoned memory."""
        with poisoned_allocations():
            return library.results(case, self.kinds[0])

    def run(self, case: Case) -> dict[str, Array]:
        """Right by every kind, infinities and NaN in the same places; returns the first's."""
        if self.gpu:
            got = self.results(case)
            expect_right(case, got, self.kinds[0].dtype)
            return got
        exact = case.reference()
        first: dict[str, Array] = {}
        for kind, bound in zip(self.kinds, (1e-10, 1e-4), strict=True):
            with poisoned_allocations():
                got = library.results(case, kind)
            first = first or got
            for name, expected in exact.items():
                finite = np.isfinite(expected)
                np.testing.assert_array_equal(np.isfinite(got[name]), finite, err_msg=name)
                np.testing.assert_allclose(
                    got[name][finite], expected[finite], rtol=bound, atol=bound, err_msg=name
                )
                infinite = np.isneginf(expected)
                np.testing.assert_array_equal(np.isneginf(got[name])[infinite], True, err_msg=name)
        return first

    def run_spread(self, case: Case, name: str) -> dict[str, Array]:
        """As `run`, for a `name` that holds NaN or Inf which rows see.

        A product on a GPU multiplies the zero weights of what is masked by what is there, so that
        it may reach more: from V the rows of its tile, in the backward pass the whole head.
        """
        if not self.gpu:
            return self.run(case)
        got = self.results(case)
        exact = case.reference()
        naive = case.reference(self.kinds[0].dtype)
        strict = dict(got)
        for key, expected in exact.items():
            odd = ~np.isfinite(expected)
            assert not np.isfinite(got[key][odd]).any(), key
            reached = np.zeros_like(odd)
            if key not in ("out", "lse") or name == "v":
                kept = (0, 2) if key in BY_ROW else (0, 1)
                rest = tuple(n for n in range(odd.ndim) if n not in kept)
                reached = ~np.isfinite(got[key]) & odd.any(axis=rest, keepdims=True)
            for values in (strict, exact, naive):
                values[key] = np.where(odd | reached, 0, values[key])
        expect_within(case, strict, exact, naive, self.kinds[0].dtype)
        return got


@pytest.fixture(params=["cpu", *gpu_params(*GPU_SAMPLE)])
def arena(request: pytest.FixtureRequest) -> Arena:
    if request.param == "cpu":
        return Arena([kind_of("numpy-float64"), kind_of("numpy-float32")], gpu=False)
    return Arena([kind_of(request.param)], gpu=True)


def test_rows_without_keys(arena: Arena) -> None:
    case = arena.dense(np.random.default_rng(1), 2, 30, 12, causal=True)
    case.inputs["q"][:, :18] = np.nan
    if arena.gpu:
        # Whole tiles are multiplied there: what the rows hold may reach dk and dv of the tile.
        inputs = {name: x for name, x in case.inputs.items() if name != "dout"}
        arena.run(Case("forward", "dense", inputs, case.options, {}, 0.0))
        case.inputs["q"][:, :18] = 1
    else:
        case.inputs["dout"][:, :18] = np.nan
    case.inputs["dlse"] = np.full((2, 2, 30), 0.5)
    case.inputs["dlse"][:, :, :18] = np.nan
    got = arena.run(case)
    assert (got["out"][:, :18] == 0).all()
    assert (got["dq"][:, :18] == 0).all()
    assert np.isneginf(got["lse"][:, :, :18]).all()
    assert np.isfinite(got["dk"]).all()
    assert np.isfinite(got["dv"]).all()


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("keys", [0, 7])
def test_empty_extents(arena: Arena, batch: int, rows: int, keys: int) -> None:
    case = arena.dense(np.random.default_rng(2), batch, rows, keys)
    case.inputs["sinks"] = np.array([0.5, -1.0])
    got = arena.run(case)
    assert got["out"].shape == case.inputs["dout"].shape
    assert got["dk"].shape == (batch, keys, 2, 8)
    if keys == 0:
        assert (got["out"] == 0).all()
        assert (got["dsinks"] == 0).all()


def test_empty_sequences_in_a_packed_batch(arena: Arena) -> None:
    rng = np.random.default_rng(3)
    case = arena.dense(rng, 1, 12, 15)
    inputs = {name: x[0] for name, x in case.inputs.items()}
    inputs["cu_seqlens_q"] = np.array([0, 0, 5, 5, 9])  # the last three tokens belong to nobody
    inputs["cu_seqlens_k"] = np.array([0, 4, 4, 9, 15])
    got = arena.run(Case("packed", "varlen", inputs, {"causal": True}, {}, 0.0))
    assert (got["out"][9:] == 0).all()
    assert (got["dq"][9:] == 0).all()
    assert (got["dk"][:9] == 0).all()


@pytest.mark.parametrize("rubbish", [np.nan, np.inf, -np.inf])
def test_rubbish_beyond_the_lengths(arena: Arena, rubbish: float) -> None:
    rng = np.random.default_rng(4)
    case = arena.dense(rng, 1, 40, 50)
    inputs = {name: x[0] for name, x in case.inputs.items()}
    inputs |= {
        "cu_seqlens_q": np.array([0, 20, 38]),
        "cu_seqlens_k": np.array([0, 30, 47]),
        "seqused_q": np.array([17, 18]),
        "seqused_k": np.array([21, 9]),
    }
    packed = Case("packed", "varlen", inputs, {}, {}, 0.0, deterministic=True)
    clean = arena.results(packed)
    for name in ("q", "dout"):
        for part in (slice(17, 20), slice(38, 40)):
            inputs[name][part] = rubbish
    for name in ("k", "v"):
        for part in (slice(21, 30), slice(39, 50)):
            inputs[name][part] = rubbish
    for name, expected in arena.results(packed).items():
        np.testing.assert_array_equal(expected, clean[name], err_msg=name)
    arena.run(packed)


@pytest.mark.parametrize("rubbish", [np.nan, np.inf])
def test_rubbish_in_pages(arena: Arena, rubbish: float) -> None:
    rng = np.random.default_rng(5)
    inputs = {
        "q": eighths(rng, 2, 1, 4, 16),
        "k_cache": eighths(rng, 7, 4, 2, 16),
        "v_cache": eighths(rng, 7, 4, 2, 16),
        "block_table": np.array([[5, 2, -1], [6, -1, 2**31 - 1]]),
        "seqlens_k": np.array([6, 3]),
    }
    for name in ("k_cache", "v_cache"):
        inputs[name][[0, 1, 3, 4]] = rubbish
        inputs[name][2, 2:] = rubbish
        inputs[name][6, 3:] = rubbish
    for split_size in (3, 64):
        got = arena.run(Case("paged", "paged", inputs, {"split_size": split_size}, {}, 0.0))
        assert np.isfinite(got["out"]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "dout"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (9, 4)}], ids=str)
def test_spread_of_what_is_seen(
    arena: Arena, name: str, value: float, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(6)
    case = arena.dense(rng, 2, 70, 110, **options)
    case.inputs["bias"] = eighths(rng, 1, 2, 70, 110)
    at = {"bias": (0, 1, 30, 70), "k": (1, 70, 1, 2), "v": (1, 70, 1, 2)}.get(name, (1, 30, 1, 2))
    case.inputs[name][at] = value  # row 30 sees key 70 under every mask
    if name == "q" and np.isinf(value):  # scores of both signs: compare what rows see
        case.inputs["k"] = np.abs(case.inputs["k"]) + 0.125
    got = arena.run_spread(case, name)
    assert not np.isfinite(got["dq"]).all()
    assert np.isfinite(got["out"][0]).all() or name == "bias"


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_scores_of_ten_thousand(arena: Arena, size: float) -> None:
    case = arena.dense(np.random.default_rng(7), 1, 20, 30, scale=1.0)
    for name in ("q", "k"):
        case.inputs[name] = np.round(case.inputs[name])
        case.inputs[name][..., 0] = 0
    case.inputs["q"][..., 0] = 100
    case.inputs["k"][..., 0] = size / 100
    exact = case.reference()
    bounds = {"float64": 1e-9, "float32": 1e-2}
    for kind in arena.kinds:
        if kind.dtype not in bounds:  # out is saved in 16 bits, and what that does grows with k
            arena.run(case)
            continue
        for name, got in library.results(case, kind).items():
            # The terms of dq cancel: they are as large as those of dk.
            scale = np.abs(exact["dk" if name == "dq" else name]).max()
            np.testing.assert_allclose(
                got / scale, exact[name] / scale, atol=bounds[kind.dtype], err_msg=name
            )
    assert np.abs(exact["lse"]).min() > 9e3


def test_equal_scores_and_minus_infinity_in_bias(arena: Arena) -> None:
    case = arena.dense(np.random.default_rng(8), 1, 9, 16)
    case.inputs["q"][:] = 0
    bias = np.zeros((1, 1, 9, 16))
    bias[..., ::2] = -np.inf
    bias[:, :, 4] = -np.inf
    case.inputs["bias"] = bias
    got = arena.run(case)
    mean = case.inputs["v"][:, 1::2].mean(axis=1)
    bounds = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}
    np.testing.assert_allclose(got["out"][:, 0], mean, atol=bounds[arena.kinds[0].dtype])
    assert np.isneginf(got["lse"][:, :, 4]).all()
    assert (got["out"][:, 4] == 0).all()
    assert (got["dq"][:, 4] == 0).all()


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 50), (50, 1), (20, 60), (60, 20)])
@pytest.mark.parametrize("window", [(0, 0), (3, -1), (-1, 3), (999, 999), (2**40, 0), (0, 2**40)])
def test_windows(arena: Arena, rows: int, keys: int, window: tuple[int, int]) -> None:
    arena.run(arena.dense(np.random.default_rng(9), 1, rows, keys, window=window))


def far(shape: tuple[int, ...], axis: int, dtype: Any) -> Array:
    """Zeros whose stride along one axis passes 2^31 elements; untouched pages take no memory."""
    stride = 2**31 + 24
    item = np.dtype(dtype).itemsize
    inner = int(np.prod(shape))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, (stride * (shape[axis] - 1) + inner) * item, flags=flags)
    strides = np.array(np.empty(shape, np.uint8).strides) * item
    strides[axis] = stride * item
    return np.ndarray(shape, dtype, memory, 0, tuple(int(s) for s in strides))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_strides_past_two_to_the_31(axis: int, dtype: Any) -> None:
    rng = np.random.default_rng(10)
    case = Arena([], gpu=False).dense(rng, 2, 2, 2)
    inputs = {}
    for name, x in case.inputs.items():
        inputs[name] = far(x.shape, axis, dtype)
        inputs[name][...] = x
    q, k, v, dout = (inputs[name] for name in ("q", "k", "v", "dout"))
    out = far((2, 2, 2, 6), axis, dtype)
    got, lse = onchip.attention(q, k, v, out=out, return_lse=True)
    assert np.shares_memory(got[:1, :1, :1], out[:1, :1, :1])
    gradients = onchip.attention_backward(dout, q, k, v, out, lse)
    exact = case.reference()
    precision = np.dtype(dtype).name
    naive = case.reference(precision)
    oracle.check("out", out, exact["out"], naive["out"], precision=precision)
    for name, x in zip(("dq", "dk", "dv"), gradients, strict=True):
        oracle.check(name, x, exact[name], naive[name], precision=precision, slack=2e-3)


def test_batch_of_hundred_thousand(arena: Arena) -> None:
    rng = np.random.default_rng(11)
    batch = 100_000
    case = arena.dense(rng, batch, 1, 3, heads=1)
    got = arena.results(case)
    some = rng.integers(0, batch, 50)
    inputs = {name: x[some] for name, x in case.inputs.items()}
    part = Case("part", "dense", inputs, {}, {}, 0.0)
    expect_right(part, {name: x[some] for name, x in got.items()}, arena.kinds[0].dtype)


def test_thousand_heads(arena: Arena) -> None:
    arena.run(arena.dense(np.random.default_rng(12), 1, 2, 3, heads=1000))
