# SPDX-License-Identifier: Apache-2.0
"""float32 where its digits are few: large scores, long sums, and lse, which is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onchip
from casefile import Array, Case
from comparison import expect_right, expect_within
from kinds import Kind, gpu_params, kind_of
from library import results
from problems import eighths

GPU = ("cupy-float32", "jax-cuda-float32", "torch-cuda-float32")


@pytest.fixture(params=["numpy-float32", *gpu_params(*GPU)])
def float32(request: pytest.FixtureRequest) -> Kind:
    return kind_of(request.param)


@pytest.fixture(params=gpu_params(*GPU))
def on_gpu(request: pytest.FixtureRequest) -> Kind:
    return kind_of(request.param)


def large_scores(number: int) -> Case:
    """Scores of up to 160, which the naive computation happens to have exactly: inputs are
    multiples of 1/8, and scale, bias and slopes bring no further digits."""
    rng = np.random.default_rng((32, number))
    batch, rows, keys, dim = 2, 40, int(rng.integers(40, 160)), int(rng.choice([8, 64, 256]))
    inputs = {
        "q": eighths(rng, batch, rows, 2, dim),
        "k": eighths(rng, batch, keys, 1, dim),
        "v": eighths(rng, batch, keys, 1, dim),
        "dout": eighths(rng, batch, rows, 2, dim),
        "dlse": eighths(rng, batch, 2, rows),
        "alibi_slopes": rng.integers(-64, 32, 2) / 64,
        "bias": eighths(rng, 1, 2, rows, keys),
    }
    if rng.integers(2):
        inputs["sinks"] = 8 * eighths(rng, 2)
    return Case("large scores", "dense", inputs, {"scale": 0.5}, {}, 0.0)


@pytest.mark.parametrize("number", range(8))
def test_large_scores(number: int, float32: Kind) -> None:
    case = large_scores(number)
    expect_right(case, results(case, float32), "float32")


@pytest.mark.parametrize("number", range(8))
def test_large_scores_against_exact_ones(number: int, on_gpu: Kind) -> None:
    """The kernels of GPUs round no score once more, and make up for the rounding of lse."""
    case = large_scores(number)
    got = results(case, on_gpu)
    expect_within(case, got, case.reference(), case.reference("float32"), "float32")


@pytest.mark.parametrize("split_size", [1, 7, 64])
def test_large_scores_in_splits(split_size: int, float32: Kind) -> None:
    case = large_scores(0)
    q, k, v = case.qkv
    rest = {name: case.inputs[name] for name in ("bias", "alibi_slopes")}
    rest["seqlens_k"] = np.full(len(k), k.shape[1], np.int32)
    given = {"q": q[:, -4:], "k_cache": k, "v_cache": v, **rest, "bias": rest["bias"][:, :, -4:]}
    split = Case("splits", "paged", given, {**case.options, "split_size": split_size}, {}, 0.0)
    whole = Case("whole", "dense", {"q": q[:, -4:], "k": k, "v": v, "bias": given["bias"],
                 "alibi_slopes": rest["alibi_slopes"]}, case.options, {}, 0.0)  # fmt: skip
    got = results(split, float32)
    exact, naive = whole.reference(), whole.reference("float32", 1.19)
    expect_within(whole, got, exact, naive, "float32")


def test_a_long_sum(float32: Kind) -> None:
    """Of weights and values that are all alike: each addition to a single sum would be rounded to
    the same side."""
    keys = 20_000
    q = np.zeros((1, 1, 1, 8))
    v = np.full((1, keys, 1, 8), np.float32(0.1), np.float64)
    k = np.zeros_like(v)
    made = [float32.make(x) for x in (q, k, v)]
    out, lse = (float32.back(x) for x in onchip.attention(*made, return_lse=True))
    np.testing.assert_allclose(out, v[:, :1], rtol=2e-6)
    np.testing.assert_allclose(lse, np.log(keys), rtol=1e-6)


def test_gradients_of_parts_with_the_lse_of_the_whole(float32: Kind) -> None:
    """A part of the keys with out and lse of all: its weights do not add up to 1, nor should
    they."""
    case = large_scores(1)
    q, k, v = case.qkv
    dout = case.inputs["dout"]
    made_q, made_dout = float32.make(q), float32.make(dout)
    halves = [slice(0, 30), slice(30, None)]
    parts = [(float32.make(k[:, half]), float32.make(v[:, half])) for half in halves]
    states = [onchip.attention(made_q, *part, scale=0.5, return_lse=True) for part in parts]
    out, lse = onchip.merge_states([s[0] for s in states], [s[1] for s in states])
    gradients: list[Any] = [
        onchip.attention_backward(made_dout, made_q, *part, out, lse, scale=0.5) for part in parts
    ]
    back: list[list[Array]] = [[float32.back(x) for x in part] for part in gradients]
    got = {
        "dq": back[0][0] + back[1][0],
        "dk": np.concatenate([back[0][1], back[1][1]], axis=1),
        "dv": np.concatenate([back[0][2], back[1][2]], axis=1),
    }
    whole = Case("whole", "dense", {"q": q, "k": k, "v": v, "dout": dout}, case.options, {}, 0.0)
    exact = whole.reference()
    for name, x in got.items():
        scale = np.abs(exact[name]).max()
        assert np.abs(x - exact[name]).max() < 1e-5 * scale, name
