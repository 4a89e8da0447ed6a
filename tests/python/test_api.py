# SPDX-License-Identifier: Apache-2.0
"""Every public function, for every kind of array, against the NumPy reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import onchip
import oracle
from kinds import Array, Kind

B, SQ, SK, HQ, HKV, D, DV = 2, 9, 13, 4, 2, 16, 24


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def draw(rng: np.random.Generator, kind: Kind, *shape: int) -> tuple[Any, Array]:
    """An array of that kind, and its exact values."""
    array = kind.make(rng.standard_normal(shape).astype(np.float32))
    return array, values(kind, array)


def values(kind: Kind, array: Any) -> Array:
    return kind.back(array.array if hasattr(array, "array") else array)


def draw_stats(rng: np.random.Generator, kind: Kind, *shape: int) -> tuple[Any, Array]:
    plain = rng.standard_normal(shape).astype(np.float32)
    return kind.make_stats(plain), plain.astype(np.float64)


def is_result(kind: Kind, array: Any, dtype: str, shape: tuple[int, ...]) -> None:
    assert isinstance(array, kind.cls)
    assert kind.dtype_of(array) == dtype
    assert tuple(array.shape) == shape


def stats_dtype(kind: Kind) -> str:
    return "float64" if kind.dtype == "float64" else "float32"


def check(kind: Kind, name: str, got: Any, exact: Array, naive: Array) -> None:
    oracle.check(name, kind.back(got), exact, naive)


# ---------------------------------------------------------------- dense


def test_attention(kind: Kind, rng: np.random.Generator) -> None:
    (q, q_), (k, k_), (v, v_) = (
        draw(rng, kind, B, SQ, HQ, D),
        draw(rng, kind, B, SK, HKV, D),
        draw(rng, kind, B, SK, HKV, DV),
    )
    out, lse = onchip.attention(q, k, v, causal=True, return_lse=True)
    is_result(kind, out, kind.dtype, (B, SQ, HQ, DV))
    is_result(kind, lse, stats_dtype(kind), (B, HQ, SQ))
    exact, naive = (
        oracle.forward(q_, k_, v_, causal=True, precision=p) for p in ("float64", kind.dtype)
    )
    check(kind, "out", out, exact[0], naive[0])
    np.testing.assert_allclose(kind.back(lse), exact[1], atol=1e-4)
    alone = onchip.attention(q, k, v, causal=True)
    np.testing.assert_array_equal(kind.back(alone), kind.back(out))


@pytest.mark.parametrize("backward", [False, True])
def test_every_option(kind: Kind, rng: np.random.Generator, backward: bool) -> None:
    (q, q_), (k, k_), (v, v_), (dout, dout_) = (
        draw(rng, kind, B, SQ, HQ, D),
        draw(rng, kind, B, SK, HKV, D),
        draw(rng, kind, B, SK, HKV, DV),
        draw(rng, kind, B, SQ, HQ, DV),
    )
    bias, bias_ = draw(rng, kind, 1, HQ, 1, SK)
    slopes, slopes_ = draw_stats(rng, kind, HQ)
    sinks, sinks_ = draw_stats(rng, kind, HQ)
    dlse, dlse_ = draw_stats(rng, kind, B, HQ, SQ)
    plain: dict[str, Any] = {
        "scale": 0.3, "window": (7, 2), "softcap": 2.5, "dropout_p": 0.2, "seed": 2**40 + 3,
        "offset": 5,
    }  # fmt: skip
    options = {**plain, "bias": bias, "alibi_slopes": slopes, "sinks": sinks}
    options_ = {**plain, "bias": bias_, "alibi_slopes": slopes_, "sinks": sinks_}
    out, lse = onchip.attention(q, k, v, **options, return_lse=True)
    precisions = ("float64", kind.dtype)
    if not backward:
        exact, naive = (oracle.forward(q_, k_, v_, **options_, precision=p) for p in precisions)
        check(kind, "out", out, exact[0], naive[0])
        np.testing.assert_allclose(kind.back(lse), exact[1], atol=1e-4)
        return
    got = onchip.attention_backward(
        dout, q, k, v, out, lse, dlse=dlse, deterministic=True, **options
    )
    exact_, naive_ = (
        oracle.backward(dout_, q_, k_, v_, dlse=dlse_, **options_, precision=p)._asdict()
        for p in precisions
    )
    dtypes = [kind.dtype] * 4 + [stats_dtype(kind)]
    assert len(got) == len(dtypes)
    for array, name, dtype in zip(got, exact_, dtypes, strict=True):
        is_result(kind, array, dtype, exact_[name].shape)
        check(kind, name, array, exact_[name], naive_[name])


def test_backward_returns_what_was_given(kind: Kind, rng: np.random.Generator) -> None:
    q, k, v = (draw(rng, kind, 1, 3, 2, 8)[0] for _ in range(3))
    bias = draw(rng, kind, 1, 1, 3, 3)[0]
    sinks = draw_stats(rng, kind, 2)[0]
    for terms in ({}, {"bias": bias}, {"sinks": sinks}, {"sinks": sinks, "bias": bias}):
        out, lse = onchip.attention(q, k, v, return_lse=True, **terms)
        got = onchip.attention_backward(q, q, k, v, out, lse, **terms)
        shapes: list[tuple[int, ...]] = [(1, 3, 2, 8)] * 3
        shapes += [(1, 1, 3, 3)] if "bias" in terms else []
        shapes += [(2,)] if "sinks" in terms else []
        assert [tuple(x.shape) for x in got] == shapes


def test_out_is_written_and_returned(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    q = rng.standard_normal((1, 5, 2, 8)).astype(np.float32)
    expected = onchip.attention(q, q, q)
    out = np.full_like(q, np.nan)
    assert onchip.attention(q, q, q, out=out) is out
    np.testing.assert_array_equal(out, expected)
    t, t_out = torch.from_numpy(q), torch.full((1, 5, 2, 8), torch.nan)
    assert onchip.attention(t, t, t, out=t_out) is t_out
    np.testing.assert_array_equal(t_out.numpy(), expected)
    # A slice of something larger: only the slice changes.
    wide = np.full((1, 5, 4, 8), -7.0, np.float32)
    onchip.attention(q, q, q, out=wide[:, :, 1:3])
    np.testing.assert_array_equal(wide[:, :, 1:3], expected)
    assert (wide[:, :, [0, 3]] == -7).all()


@pytest.mark.parametrize(("batch", "rows", "keys"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_nothing_to_attend(kind: Kind, batch: int, rows: int, keys: int) -> None:
    q, k, v = (
        kind.make(np.ones(shape, np.float32))
        for shape in ((batch, rows, HQ, D), (batch, keys, HKV, D), (batch, keys, HKV, DV))
    )
    dout = kind.make(np.ones((batch, rows, HQ, DV), np.float32))
    out, lse = onchip.attention(q, k, v, return_lse=True)
    is_result(kind, out, kind.dtype, (batch, rows, HQ, DV))
    is_result(kind, lse, stats_dtype(kind), (batch, HQ, rows))
    assert (kind.back(out) == 0).all()
    assert (kind.back(lse) == -np.inf).all()
    gradients = onchip.attention_backward(dout, q, k, v, out, lse)
    for gradient, given in zip(gradients, (q, k, v), strict=True):
        is_result(kind, gradient, kind.dtype, values(kind, given).shape)
        assert (kind.back(gradient) == 0).all()


# ---------------------------------------------------------------- variable length


def test_varlen(kind: Kind, rng: np.random.Generator) -> None:
    lengths_q, lengths_k = [4, 0, 7], [6, 3, 5]
    cu_q_, cu_k_ = (np.cumsum([0, *n]).astype(np.int32) for n in (lengths_q, lengths_k))
    used_q_, used_k_ = np.array([3, 0, 7], np.int32), np.array([6, 2, 4], np.int32)
    (q, q_), (k, k_), (v, v_), (dout, dout_) = (
        draw(rng, kind, sum(lengths_q), HQ, D),
        draw(rng, kind, sum(lengths_k), HKV, D),
        draw(rng, kind, sum(lengths_k), HKV, DV),
        draw(rng, kind, sum(lengths_q), HQ, DV),
    )
    plain: dict[str, Any] = {"causal": True}
    lengths_ = {
        "cu_seqlens_q": cu_q_, "cu_seqlens_k": cu_k_, "seqused_q": used_q_, "seqused_k": used_k_,
    }  # fmt: skip
    lengths = {name: kind.make_int(x) for name, x in lengths_.items()}
    hints: dict[str, Any] = {"max_seqlen_q": 7, "max_seqlen_k": 6}
    out, lse = onchip.attention_varlen(q, k, v, **lengths, **hints, **plain, return_lse=True)
    is_result(kind, out, kind.dtype, (11, HQ, DV))
    is_result(kind, lse, stats_dtype(kind), (HQ, 11))
    precisions = ("float64", kind.dtype)
    exact, naive = (
        oracle.forward(q_, k_, v_, **lengths_, **plain, precision=p) for p in precisions
    )
    check(kind, "out", out, exact[0], naive[0])
    np.testing.assert_allclose(kind.back(lse), exact[1], atol=1e-4)

    got = onchip.attention_varlen_backward(dout, q, k, v, out, lse, **lengths, **hints, **plain)
    exact_, naive_ = (
        oracle.backward(dout_, q_, k_, v_, **lengths_, **plain, precision=p) for p in precisions
    )
    assert len(got) == 3
    for name, array, e, n in zip(("dq", "dk", "dv"), got, exact_, naive_, strict=False):
        assert e is not None
        assert n is not None
        is_result(kind, array, kind.dtype, e.shape)
        check(kind, name, array, e, n)


# ---------------------------------------------------------------- decoding


@pytest.mark.parametrize("paged", [False, True])
def test_decode(kind: Kind, rng: np.random.Generator, paged: bool) -> None:
    q, q_ = draw(rng, kind, B, 2, HQ, D)
    seqlens_ = np.array([5, 11], np.int32)
    tables: dict[str, Any] = {}
    tables_: dict[str, Any] = {}
    if paged:
        (k, k_), (v, v_) = draw(rng, kind, 6, 4, HKV, D), draw(rng, kind, 6, 4, HKV, DV)
        tables_ = {"block_table": np.array([[5, 1, 0], [3, 0, 4]], np.int32)}
        tables = {name: kind.make_int(x) for name, x in tables_.items()}
    else:
        (k, k_), (v, v_) = draw(rng, kind, B, SK, HKV, D), draw(rng, kind, B, SK, HKV, DV)
    exact, naive = (
        oracle.forward(q_, k_, v_, seqused_k=seqlens_, causal=True, precision=p, **tables_)
        for p in ("float64", kind.dtype)
    )
    seqlens = kind.make_int(seqlens_)
    splits: list[dict[str, Any]] = [{}, {"num_splits": 1}, {"num_splits": 3}, {"split_size": 4}]
    for split in splits:
        out, lse = onchip.decode(
            q, k, v, seqlens_k=seqlens, causal=True, return_lse=True, **tables, **split
        )
        is_result(kind, out, kind.dtype, (B, 2, HQ, DV))
        check(kind, "out", out, exact[0], naive[0])
        np.testing.assert_allclose(kind.back(lse), exact[1], atol=1e-4)


# ---------------------------------------------------------------- merging and masks


@pytest.mark.parametrize("stacked", [False, True])
def test_merge_states(kind: Kind, rng: np.random.Generator, stacked: bool) -> None:
    outs_ = rng.standard_normal((3, B, SQ, HQ, DV)).astype(np.float32)
    lses_ = rng.standard_normal((3, B, HQ, SQ)).astype(np.float32)
    lses_[:, 0, 0, 0] = -np.inf
    lses_[1] = -np.inf
    outs: Any = kind.make(outs_) if stacked else [kind.make(x) for x in outs_]
    lses: Any = kind.make_stats(lses_) if stacked else tuple(kind.make_stats(x) for x in lses_)
    out, lse = onchip.merge_states(outs, lses)
    is_result(kind, out, kind.dtype, (B, SQ, HQ, DV))
    is_result(kind, lse, stats_dtype(kind), (B, HQ, SQ))
    parts = values(kind, outs) if stacked else np.stack([values(kind, x) for x in outs])
    with np.errstate(divide="ignore"):
        exact_lse = np.log(np.exp(lses_.astype(np.float64)).sum(axis=0))
    seen = np.isfinite(exact_lse)
    weights = np.exp(lses_.astype(np.float64) - np.where(seen, exact_lse, 0))
    exact = (weights.transpose(0, 1, 3, 2)[..., None] * parts).sum(axis=0)
    step = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(kind.dtype, 1e-5)
    np.testing.assert_allclose(kind.back(out), exact, rtol=step, atol=step)
    np.testing.assert_allclose(kind.back(lse)[seen], exact_lse[seen], atol=1e-5)
    assert (kind.back(lse)[~seen] == -np.inf).all()
    assert (kind.back(out).transpose(0, 2, 1, 3)[~seen] == 0).all()


def test_merging_halves_is_the_whole(rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((1, n, 2, 8)).astype(np.float32) for n in (3, 20, 20))
    whole = onchip.attention(q, k, v, return_lse=True)
    cuts = slice(0, 13), slice(13, None)
    parts = [onchip.attention(q, k[:, cut], v[:, cut], return_lse=True) for cut in cuts]
    out, lse = onchip.merge_states([p[0] for p in parts], [p[1] for p in parts])
    np.testing.assert_allclose(out, whole[0], atol=1e-6)
    np.testing.assert_allclose(lse, whole[1], atol=1e-6)


def test_dropout_mask(kind: Kind) -> None:
    shape, p, seed, offset = (2, 3, 5, 19), 0.3, 0x1234_5678_9ABC_DEF0, 7
    expected = oracle.dropout_mask(shape, p, seed, offset)
    mask = onchip.dropout_mask(shape, p, seed, offset, like=kind.make(np.zeros(1)))
    assert isinstance(mask, kind.cls)
    assert kind.dtype_of(mask) == "uint8"
    got = np.from_dlpack(mask) if kind.cls is onchip.Buffer else np.asarray(mask)
    np.testing.assert_array_equal(got, expected)
    plain = onchip.dropout_mask(shape, p, seed, offset)
    assert isinstance(plain, np.ndarray)
    np.testing.assert_array_equal(plain, expected)


# ---------------------------------------------------------------- plans


def test_plan_for_a_named_device() -> None:
    plan = onchip.plan((2, 512, 8, 64), (2, 512, 2, 64), device="H200", causal=True)
    assert (plan.backend, plan.device.name, plan.device.type) == ("sm90", "H200", "cuda")
    assert (plan.device.index, plan.device.family) == (-1, 90)
    assert plan.as_dict()["device"]["family"] == 90
    assert plan.tile_q > 0
    assert plan.tile_k > 0
    assert 0 < plan.on_chip_bytes <= plan.device.on_chip_bytes
    assert plan.cost.bytes_read > 0
    assert plan.cost.peak_bytes < plan.standard.peak_bytes
    fields = plan.as_dict()
    assert fields == json.loads(plan.json())
    assert fields["tile_q"] == plan.tile_q
    assert "H200" in plan.explain()
    assert plan.kernel in repr(plan)


@pytest.mark.parametrize(
    ("device", "options", "kernel"),
    [
        ("H200", {}, "sm90_fwd_bfloat16_d64"),
        ("H200", {"softmax": "auto"}, "sm90_fwd_bfloat16_d64"),
        ("H100", {"softmax": "safe"}, "sm90_fwd_bfloat16_d64"),
        ("H200", {"softmax": "safe", "softcap": 9.0}, "sm90_fwd_bfloat16_d64_full"),
        ("H200", {"softmax": "safe", "backward": True}, "sm80_bwd_bfloat16_d64"),
        ("A100", {"softmax": "safe"}, "sm80_fwd_bfloat16_d64"),
        ("cpu", {"softmax": "safe"}, "cpu_fwd_bfloat16"),
    ],
)
def test_plan_for_a_softmax(device: str, options: dict[str, Any], kernel: str) -> None:
    plan = onchip.plan((2, 512, 8, 64), (2, 512, 8, 64), device=device, **options)
    assert plan.kernel == plan.as_dict()["kernel"] == kernel
    assert kernel in plan.explain()
    hopper = kernel.startswith("sm90")
    assert ("(safe)" in plan.explain()) == (hopper and options.get("softmax") == "safe")


def test_softmax_is_safe_on_the_cpu_anyway() -> None:
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(2, 9, 4, 8)).astype(np.float32) for _ in range(3))
    lengths = np.array([9, 5], np.int32)
    starts = np.array([0, 9, 18], np.int32)
    packed = [x.reshape(18, 4, 8) for x in (q, k, v)]
    calls: list[Callable[..., Any]] = [
        lambda **how: onchip.attention(q, k, v, **how),
        lambda **how: onchip.decode(q, k, v, seqlens_k=lengths, **how),
        lambda **how: onchip.attention_varlen(
            *packed, cu_seqlens_q=starts, cu_seqlens_k=starts, **how
        ),
    ]
    for call in calls:
        np.testing.assert_array_equal(call(softmax="safe"), call(softmax="auto"))
        np.testing.assert_array_equal(call(softmax="safe"), call())


def test_plan_for_this_machine() -> None:
    plan = onchip.plan((1, 64, 2, 32), (1, 80, 2, 32), (1, 80, 2, 48), dtype="float32")
    assert plan.backend == "cpu"
    assert not plan.backward
    assert plan.threads == onchip.num_threads()
    backward = onchip.plan((1, 64, 2, 32), (1, 64, 2, 32), backward=True)
    assert backward.backward
    assert backward.cost.flops > plan.cost.flops


def test_plan_takes_arrays() -> None:
    q = np.zeros((1, 8, 2, 16), np.float64)
    assert onchip.plan(q, q).json() == onchip.plan(q.shape, q.shape, dtype="float64").json()
    assert onchip.plan(q, q).json() != onchip.plan(q.shape, q.shape).json()


def test_plan_of_every_layout() -> None:
    packed: dict[str, Any] = {"batch": 3, "max_seqlen_q": 64, "max_seqlen_k": 64}
    for backward in (False, True):
        onchip.plan((100, 4, 64), (120, 2, 64), backward=backward, **packed)
        onchip.plan(
            (2, 8, 4, 64), (2, 8, 4, 64), backward=backward, alibi=True, sinks=True,
            bias_shape=(1, 4, 1, 8), dropout_p=0.1, softcap=3.0, window=(4, 4), scale=0.1,
        )  # fmt: skip
    onchip.plan((2, 1, 4, 64), (9, 16, 2, 64), max_pages=4, num_splits=0, device="A100")


def test_devices() -> None:
    names = onchip.devices()
    assert names[0] == "cpu"
    assert {"A100", "L40S", "RTX 4090", "H100", "H200", "B200"} <= set(names)
    for name in names:
        info = onchip.device_info(name)
        assert info.bandwidth > 0
        assert onchip.plan((1, 64, 1, 64), (1, 64, 1, 64), device=name).device.name == info.name


def test_io_model_check_values() -> None:
    mib = 2**20
    model = onchip.io_model((1, 4096, 1, 64), (1, 4096, 1, 64))
    assert model.q_bytes == model.k_bytes == model.v_bytes == model.out_bytes == mib / 2
    assert model.scores_bytes == 32 * mib
    assert model.tile_bytes == 8 * 1024
    assert model.standard_forward.total == (128 + 2) * mib
    assert model.tiled_forward.total < model.standard_forward.total
    small = onchip.io_model((1, 2048, 1, 64), (1, 2048, 1, 64), dtype="float16")
    assert small.scores_bytes == 8 * mib


def test_threads() -> None:
    before = onchip.num_threads()
    try:
        onchip.set_num_threads(3)
        assert onchip.num_threads() == 3
    finally:
        onchip.set_num_threads(0)
    assert onchip.num_threads() == before
    assert onchip.cpu_isa()
