# SPDX-License-Identifier: Apache-2.0
"""The contract on a GPU: both passes, every kind of device array, against the NumPy reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import casefile
import library
import onchip
import oracle
from casefile import Case
from comparison import expect_right
from kinds import GPU_KINDS, Kind
from problems import RandomChoices, eighths, random_case

# Frameworks warn about this and that of a machine; it is not what is tested here.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True, scope="module")
def _device() -> None:
    try:
        onchip.device_info("cuda")
    except (NotImplementedError, RuntimeError) as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=sorted(GPU_KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return GPU_KINDS[request.param]()


def torch() -> Any:
    return pytest.importorskip("torch")


def normal(*shape: int, seed: int = 0, dtype: str = "bfloat16") -> Any:
    generator = torch().Generator("cuda").manual_seed(seed)
    return torch().randn(shape, generator=generator, device="cuda", dtype=getattr(torch(), dtype))


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


@pytest.mark.parametrize("number", range(60))
def test_random_problem(number: int, kind: Kind) -> None:
    rng = np.random.default_rng((3, number))
    case = random_case(RandomChoices(rng), rng, 200, gpu=True)
    expect_right(case, library.results(case, kind), kind.dtype)


@pytest.mark.parametrize("dim", [64, 72, 128, 192, 256])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (70, 5)}, {"softcap": 3.0}])
def test_many_tiles(dim: int, options: dict[str, Any], kind: Kind) -> None:
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


def attend(q: Any, k: Any, v: Any, dout: Any, **options: Any) -> list[Any]:
    backward = {"deterministic": options.pop("deterministic", False)}
    out, lse = onchip.attention(q, k, v, **options, return_lse=True)
    return [out, lse, *onchip.attention_backward(dout, q, k, v, out, lse, **options, **backward)]


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


def reference(q: Any, k: Any, v: Any) -> Any:
    scores = torch().einsum("bihd,bjhd->bhij", q.double(), k.double()) / q.shape[-1] ** 0.5
    return torch().einsum("bhij,bjhd->bihd", scores.softmax(-1), v.double())


def expect_near(got: Any, expected: Any) -> None:
    assert (got.double() - expected).abs().max() < 2e-2


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


def test_strides_beyond_31_bits() -> None:
    if torch().cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free device memory")
    far = 2**31 + 64
    memory = torch().empty(far + 100 * 256, dtype=torch().bfloat16, device="cuda")
    x = memory.as_strided((2, 100, 2, 128), (far, 256, 128, 1))
    x.copy_(normal(2, 100, 2, 128))
    out = torch().empty_like(memory).as_strided(x.shape, x.stride())
    onchip.attention(x, x, x, out=out)
    expect_near(out, reference(x, x, x))
    dense = attend(*(x.contiguous() for _ in range(4)), deterministic=True)
    for got, expected in zip(attend(x, x, x, x, deterministic=True), dense, strict=True):
        assert torch().equal(got, expected)


def test_unaligned_rows() -> None:
    x = normal(2, 70, 3, 8 * 9 + 1)[..., 1:]
    dense = attend(*(x.contiguous() for _ in range(4)), deterministic=True)
    for got, expected in zip(attend(x, x, x, x, deterministic=True), dense, strict=True):
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
