# SPDX-License-Identifier: Apache-2.0
"""The contract on a GPU: both passes, every kind of device array, against the NumPy reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import casefile
import library
import onchip
import oracle
from casefile import Case
from comparison import expect_right
from kinds import GPU_KINDS, GPU_SAMPLE, Kind, need_gpu
from on_gpu import attend, expect_near, normal, reference, strides_change_no_bit, torch
from poison import poisoned_allocations
from problems import HypothesisChoices, RandomChoices, awkward_on_device, eighths, random_case

# Frameworks warn about this and that of a machine; it is not what is tested here.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    """A GPU, and NaN in all that is allocated for a call."""
    need_gpu()
    with poisoned_allocations():
        yield


@pytest.fixture(params=sorted(GPU_KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return GPU_KINDS[request.param]()


@pytest.mark.parametrize("path", casefile.FILES, ids=lambda path: path.stem)
def test_case(path: Path, kind: Kind) -> None:
    case = casefile.read(path)
    if case.op == "dropout_mask":
        mask = onchip.dropout_mask(**case.options, like=kind.make(np.zeros(1)))
        np.testing.assert_array_equal(kind.back(mask), case.expect["keep"])
        return
    q, _, v = case.qkv
    if q.shape[-1] % 8 or v.shape[-1] % 8:
        with pytest.raises(NotImplementedError, match="multiple"):
            library.results(case, kind)
        return
    expect_right(case, library.results(case, kind), kind.dtype)


@pytest.mark.parametrize("number", range(15))
def test_random_problem(number: int, kind: Kind) -> None:
    rng = np.random.default_rng((3, number))
    case = random_case(RandomChoices(rng), rng, 200, gpu=True)
    expect_right(case, library.results(case, kind), kind.dtype)


def with_awkward_strides(kind: Kind, rng: np.random.Generator) -> Kind:
    return dataclasses.replace(
        kind,
        make=lambda x: awkward_on_device(kind.make(x), rng),
        make_stats=lambda x: awkward_on_device(kind.make_stats(x), rng),
    )


@pytest.mark.parametrize("name", [n for n in sorted(GPU_KINDS) if not n.startswith("jax")])
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_agrees_with_the_reference(name: str, data: st.DataObject) -> None:
    kind = GPU_KINDS[name]()
    rng = np.random.default_rng(data.draw(st.integers(0, 1000), label="seed"))
    case = dataclasses.replace(
        random_case(HypothesisChoices(data), rng, gpu=True), deterministic=True
    )
    got = library.results(case, with_awkward_strides(kind, rng))
    expect_right(case, got, kind.dtype)
    again = library.results(case, kind)
    if kind.dtype == "float32" or strides_change_no_bit():
        for key, value in got.items():
            np.testing.assert_array_equal(again[key], value, err_msg=f"{key} depends on strides")
    else:
        expect_right(case, again, kind.dtype)


@pytest.mark.parametrize("dim", [64, 72, 128, 192, 256])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (70, 5)}, {"softcap": 3.0}])
@pytest.mark.parametrize("name", GPU_SAMPLE)
def test_many_tiles(dim: int, options: dict[str, Any], name: str) -> None:
    kind = GPU_KINDS[name]()
    rng = np.random.default_rng(dim)
    rows, keys = 300, 421
    inputs = {
        "q": eighths(rng, 1, rows, 4, dim),
        "k": eighths(rng, 1, keys, 2, dim),
        "v": eighths(rng, 1, keys, 2, dim),
        "dout": eighths(rng, 1, rows, 4, dim),
    }
    case = Case("tiles", "dense", inputs, options, {}, 0.0)
    expect_right(case, library.results(case, kind), kind.dtype)


@pytest.mark.parametrize("name", sorted(GPU_KINDS))
def test_results_are_of_the_callers_kind(name: str) -> None:
    kind = GPU_KINDS[name]()
    q = kind.make(np.ones((1, 3, 2, 8)))
    out, lse = onchip.attention(q, q, q, return_lse=True)
    assert isinstance(out, kind.cls)
    assert kind.dtype_of(out) == kind.dtype
    assert kind.dtype_of(lse) == "float32"
    if name.startswith("jax"):
        with pytest.raises(TypeError, match="immutable"):
            onchip.attention(q, q, q, out=q)
        return
    given = kind.make(np.full((1, 3, 2, 8), np.nan))
    assert onchip.attention(q, q, q, out=given) is given
    np.testing.assert_array_equal(kind.back(given), kind.back(out))


def test_dropout_mask_is_the_cpus_bit_for_bit() -> None:
    shape = (2, 3, 70, 131)
    like = normal(1)
    for p, seed, offset in [(0.1, 7, 0), (0.5, 2**63 + 5, 2**32 + 3), (0.0, 0, 1)]:
        got = onchip.dropout_mask(shape, p, seed, offset, like=like)
        expected = onchip.dropout_mask(shape, p, seed, offset)
        np.testing.assert_array_equal(got.cpu().numpy(), np.asarray(expected))


def kept_by(case: Case, kind: Kind) -> tuple[Any, Any]:
    """Which weights the forward and the backward pass keep: (B, H, Sq, Sk).

    With q = 0 all weights are equal, rows of the identity as values show them one by one in out,
    and as dout in dv.
    """
    got = library.results(case, kind)
    forward = got["out"].transpose(0, 2, 1, 3) > 0
    return forward, got["dv"].transpose(0, 2, 3, 1) > 0


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_kernels_drop_what_the_cpu_drops(dim: int, kind: Kind) -> None:
    """Bit for bit, several tiles of rows and of keys."""
    batch, heads = 2, 3
    q = np.zeros((batch, dim, heads, dim))
    identity = np.broadcast_to(np.eye(dim)[None, :, None], q.shape).copy()
    options = {"dropout_p": 0.3, "seed": 2**63 + 5, "offset": 7}
    inputs = {"q": q, "k": q, "v": identity, "dout": identity}
    forward, backward = kept_by(Case("dropout", "dense", inputs, options, {}, 0.0), kind)
    expected = np.asarray(onchip.dropout_mask((batch, heads, dim, dim), 0.3, 2**63 + 5, 7)) == 1
    np.testing.assert_array_equal(forward, expected)
    np.testing.assert_array_equal(backward, expected)


@pytest.mark.parametrize("split_size", [8, 13, 64])
def test_splits_drop_what_the_whole_drops(split_size: int, kind: Kind) -> None:
    keys = 128
    q = kind.make(np.zeros((2, 3, 4, keys)))
    k = kind.make(np.zeros((2, keys, 4, keys)))
    v = kind.make(np.broadcast_to(np.eye(keys)[None, :, None], (2, keys, 4, keys)).copy())
    lengths = kind.make_int(np.array([keys, keys]))
    given: dict[str, Any] = {"dropout_p": 0.4, "seed": 11, "split_size": split_size}
    out = onchip.decode(q, k, v, seqlens_k=lengths, **given)
    expected = np.asarray(onchip.dropout_mask((2, 4, 3, keys), 0.4, 11)) == 1
    np.testing.assert_array_equal(kind.back(out).transpose(0, 2, 1, 3) > 0, expected)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_merged_parts_are_the_whole(count: int, kind: Kind) -> None:
    rng = np.random.default_rng(count)
    q = eighths(rng, 2, 5, 4, 64)
    k, v = (eighths(rng, 2, 10 * count, 4, 64) for _ in range(2))
    parts = [
        onchip.attention(
            kind.make(q), kind.make(k[:, n::count]), kind.make(v[:, n::count]), return_lse=True
        )
        for n in range(count)
    ]
    out, lse = onchip.merge_states(*zip(*parts, strict=True))
    exact, exact_lse = oracle.forward(q, k, v)
    naive = oracle.forward(q, k, v, precision=kind.dtype)[0]
    oracle.check("out", kind.back(out), exact, naive, precision=kind.dtype, slack=1e-5)
    np.testing.assert_allclose(kind.back(lse), exact_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("split_size", [32, 100, 1000])
def test_splits(split_size: int, kind: Kind) -> None:
    rng = np.random.default_rng(split_size)
    inputs = {
        "q": eighths(rng, 3, 2, 8, 64),
        "k_cache": eighths(rng, 3, 700, 2, 64),
        "v_cache": eighths(rng, 3, 700, 2, 64),
        "seqlens_k": np.array([700, 0, 133], np.int32),
        "sinks": eighths(rng, 8),
    }
    case = Case("splits", "paged", inputs, {"split_size": split_size, "causal": True}, {}, 0.0)
    expect_right(case, library.results(case, kind), kind.dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_repeats_bit_for_bit(dim: int, dtype: str) -> None:
    q, dout = (normal(2, 333, 4, dim, seed=s, dtype=dtype) for s in (0, 1))
    k, v = (normal(2, 421, 2, dim, seed=s, dtype=dtype) for s in (2, 3))
    first = attend(q, k, v, dout, causal=True, deterministic=True)
    for _ in range(5):
        again = attend(q, k, v, dout, causal=True, deterministic=True)
        assert all(torch().equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_row_does_not_depend_on_its_neighbours_in_the_batch() -> None:
    q = normal(5, 200, 8, 128)
    k, v = (normal(5, 300, 2, 128, seed=s) for s in (1, 2))
    whole = onchip.attention(q, k, v, causal=True)
    lengths = torch().full((5,), 300, dtype=torch().int32, device="cuda")
    decoded = onchip.decode(q[:, :1], k, v, seqlens_k=lengths, split_size=64)
    for b in range(5):
        part = slice(b, b + 1)
        alone = onchip.attention(q[part], k[part], v[part], causal=True)
        assert torch().equal(alone, whole[part])
        alone = onchip.decode(q[part, :1], k[part], v[part], seqlens_k=lengths[part], split_size=64)
        assert torch().equal(alone, decoded[part])


def test_a_row_does_not_depend_on_how_it_is_packed() -> None:
    """Backward too, in fixed order; neighbours that hold NaN change nothing."""
    lengths = [70, 1, 0, 200, 129]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    q, dout = (normal(int(starts[-1]), 4, 64, seed=s) for s in (0, 1))
    k, v = (normal(int(starts[-1]), 2, 64, seed=s) for s in (2, 3))

    def packed(*x: Any, cu: Any) -> list[Any]:
        given = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "causal": True}
        out, lse = onchip.attention_varlen(*x[:3], **given, return_lse=True)
        gradients = onchip.attention_varlen_backward(
            x[3], *x[:3], out, lse, **given, deterministic=True
        )
        return [out, lse.T, *gradients]

    whole = packed(q, k, v, dout, cu=torch().from_numpy(starts).cuda())
    for b, length in enumerate(lengths):
        part = slice(int(starts[b]), int(starts[b + 1]))
        cu = torch().tensor([0, length], dtype=torch().int32, device="cuda")
        alone = packed(*(x[part].contiguous() for x in (q, k, v, dout)), cu=cu)
        for got, expected in zip(whole, alone, strict=True):
            assert torch().equal(got[part], expected)
    for x in (q, k, v, dout):
        x[: starts[3]] = torch().nan
        x[starts[4] :] = torch().nan
    beside_nan = packed(q, k, v, dout, cu=torch().from_numpy(starts).cuda())
    part = slice(int(starts[3]), int(starts[4]))
    for got, expected in zip(beside_nan, whole, strict=True):
        assert torch().equal(got[part], expected[part])


def test_a_batch_of_100000_and_1000_heads() -> None:
    q = normal(100_000, 3, 1, 64)
    expect_near(onchip.attention(q, q, q)[-1000:], reference(q[-1000:], q[-1000:], q[-1000:]))
    q = normal(2, 9, 1000, 64)
    expect_near(onchip.attention(q, q, q), reference(q, q, q))


def test_100000_packed_sequences() -> None:
    lengths = np.random.default_rng(0).integers(0, 5, 100_000)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    q, dout = (normal(int(starts[-1]) + 7, 2, 64, seed=s) for s in (0, 1))
    cu = torch().from_numpy(starts).cuda()
    given = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "causal": True}
    out, lse = onchip.attention_varlen(q, q, q, **given, return_lse=True)
    gradients = onchip.attention_varlen_backward(dout, q, q, q, out, lse, **given)
    assert (out[starts[-1] :] == 0).all()
    assert (lse[:, starts[-1] :] == -torch().inf).all()
    for gradient in gradients:
        assert (gradient[starts[-1] :] == 0).all()
    for b in [0, 1, 50_000, 99_999]:
        part = slice(int(starts[b]), int(starts[b + 1]))
        x = q[None, part]
        wanted = attend(x, x, x, dout[None, part], causal=True)
        for got, expected in zip((out, *gradients), (wanted[0], *wanted[2:]), strict=True):
            assert (got[None, part].double() - expected.double()).abs().sum() < 1e-1


def test_unaligned_rows() -> None:
    x = normal(2, 70, 3, 8 * 9 + 1)[..., 1:]
    dense = x.contiguous()
    out, lse = onchip.attention(x, x, x, return_lse=True)
    if strides_change_no_bit():
        assert torch().equal(out, onchip.attention(dense, dense, dense))
    expect_near(out, reference(x, x, x))
    unaligned, aligned = (
        onchip.attention_backward(y, y, y, y, out, lse, deterministic=True) for y in (x, dense)
    )
    for got, expected in zip(unaligned, aligned, strict=True):
        assert torch().equal(got, expected)


def test_empty_problems() -> None:
    for batch, rows, keys in [(0, 3, 3), (2, 0, 3), (2, 3, 0)]:
        q, dout = normal(batch, rows, 2, 64), normal(batch, rows, 2, 64)
        k = normal(batch, keys, 2, 64)
        out, lse, dq, dk, dv = attend(q, k, k, dout)
        assert out.shape == q.shape
        assert (out == 0).all()
        assert (lse == -torch().inf).all() or rows * batch == 0
        assert all((x == 0).all() for x in (dq, dk, dv))


def test_what_a_gpu_cannot_do() -> None:
    x = normal(1, 4, 1, 64).double()
    with pytest.raises(NotImplementedError, match="float64"):
        onchip.attention(x, x, x)
    x = normal(1, 4, 1, 12)
    with pytest.raises(NotImplementedError, match="multiple"):
        onchip.attention(x, x, x)
    x = normal(1, 4, 1, 64)
    with pytest.raises(ValueError, match="k: "):
        onchip.attention(x, x.cpu(), x)
