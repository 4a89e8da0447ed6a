# SPDX-License-Identifier: Apache-2.0
"""Tensors of more than 2^31 elements. They want most of a GPU's memory: one at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import onchip
from kinds import need_gpu
from on_gpu import attend, expect_near, normal, reference, torch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    need_gpu()
    yield
    torch().cuda.empty_cache()


def need_memory(gib: int) -> None:
    torch().cuda.empty_cache()
    if torch().cuda.mem_get_info()[0] < gib * 2**30:
        pytest.skip(f"needs {gib} GiB of free device memory")


def test_batch_of_more_than_two_to_the_31_elements() -> None:
    """The last sequences, and those around element 2^31, are those of a small problem."""
    need_memory(80)
    batch = 2**31 // (64 * 16 * 128) + 9
    q, k, v, dout = (normal(batch, 64, 16, 128, seed=s) for s in range(4))
    assert q.numel() > 2**31
    whole = attend(q, k, v, dout, causal=True, deterministic=True)
    for part in (slice(0, 2), slice(batch - 11, batch - 7), slice(batch - 2, batch)):
        alone = attend(*(x[part].clone() for x in (q, k, v, dout)), causal=True, deterministic=True)
        for got, expected in zip(whole, alone, strict=True):
            assert torch().equal(got[part], expected)


def test_sequence_of_more_than_two_to_the_31_elements() -> None:
    """A window makes it short work. Also packed."""
    need_memory(80)
    rows = 2**24 + 300
    x, dout = (normal(1, rows, 1, 128, seed=s) for s in (0, 1))
    assert x.numel() > 2**31
    given = {"window": (40, 0), "deterministic": True}
    whole = attend(x, x, x, dout, **given)
    tail = [y[:, -500:].clone() for y in (x, dout)]
    last = attend(tail[0], tail[0], tail[0], tail[1], **given)
    for got, expected in zip(whole, last, strict=True):
        got, expected = (y.reshape(-1, 1 if y.ndim == 3 else 128)[-400:] for y in (got, expected))
        assert (got.double() - expected.double()).abs().max() < 2e-2
    del whole
    cu = torch().tensor([0, rows - 500, rows], dtype=torch().int32, device="cuda")
    packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "window": (40, 0)}
    out = onchip.attention_varlen(x[0], x[0], x[0], **packed)
    assert (out[-400:].double() - last[0][0, -400:].double()).abs().max() < 2e-2


def test_strides_beyond_31_bits() -> None:
    need_memory(24)
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
