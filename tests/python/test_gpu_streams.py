# SPDX-License-Identifier: Apache-2.0
"""Streams, graphs and several devices: work is queued where the caller says, and nothing waits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import onchip

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
torch = pytest.importorskip("torch")

SECOND = 2_000_000_000  # clock cycles, about


@pytest.fixture(autouse=True, scope="module")
def _device() -> None:
    try:
        onchip.device_info("cuda")
    except (NotImplementedError, RuntimeError) as reason:
        pytest.skip(str(reason))


def normal(*shape: int, device: str = "cuda") -> Any:
    return torch.randn(shape, device=device, dtype=torch.bfloat16)


def passes(q: Any, k: Any, v: Any, dout: Any) -> list[Any]:
    """Every kernel of both passes, the split ones too."""
    out, lse = onchip.attention(q, k, v, causal=True, return_lse=True)
    lengths = torch.full((q.shape[0],), k.shape[1], dtype=torch.int32, device=q.device)
    split = onchip.decode(q[:, :1], k, v, seqlens_k=lengths, split_size=64)
    gradients = onchip.attention_backward(dout, q, k, v, out, lse, causal=True, deterministic=True)
    return [out, lse, split, *gradients]


def expect_equal(got: list[Any], expected: list[Any]) -> None:
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


def test_a_delayed_producer_on_a_second_stream() -> None:
    source = [normal(2, 200, 4, 64) for _ in range(4)]
    expected = passes(*source)
    inputs = [torch.zeros_like(x) for x in source]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SECOND // 4)
        for x, value in zip(inputs, source, strict=True):
            x.copy_(value)
        got = passes(*inputs)
    side.synchronize()
    expect_equal(got, expected)


def test_cupy_orders_by_its_current_stream() -> None:
    cupy = pytest.importorskip("cupy")
    source = cupy.asarray(np.random.default_rng(0).normal(size=(1, 100, 2, 64)), cupy.float16)
    expected = onchip.attention(source, source, source)
    x = cupy.zeros_like(source)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as side:
        handle = torch.cuda.ExternalStream(side.ptr)
        with torch.cuda.stream(handle):
            torch.cuda._sleep(SECOND // 4)
        x[...] = source
        got = onchip.attention(x, x, x)
        side.synchronize()
    cupy.testing.assert_array_equal(got, expected)


def test_nothing_waits_while_the_stream_is_blocked() -> None:
    inputs = [normal(2, 200, 4, 64) for _ in range(4)]
    expected = passes(*inputs)  # everything is loaded and allocated
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        passes(*inputs)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2 * SECOND)
        start = time.perf_counter()
        got = passes(*inputs)
        seconds = time.perf_counter() - start
        assert not stream.query(), "the calls waited for the stream"
    assert seconds < 0.5
    stream.synchronize()
    expect_equal(got, expected)


def test_graph_replays_with_changed_inputs() -> None:
    inputs = [normal(2, 200, 4, 64) for _ in range(4)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        passes(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = passes(*inputs)
    for _ in range(3):
        for x in inputs:
            x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        expect_equal(got, passes(*inputs))


def test_packed_graph_replays_with_changed_lengths() -> None:
    q = normal(256, 4, 64)
    cu = torch.tensor([0, 100, 256], dtype=torch.int32, device="cuda")
    onchip.attention_varlen(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = onchip.attention_varlen(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu)
    for lengths in [(0, 1, 256), (0, 200, 200), (0, 128, 130)]:
        cu.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        expected = onchip.attention_varlen(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu)
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
        assert (out[lengths[-1] :] == 0).all()


def test_cupy_graph() -> None:
    cupy = pytest.importorskip("cupy")
    x = cupy.asarray(np.random.default_rng(0).normal(size=(1, 100, 2, 64)), cupy.float16)
    out = cupy.empty_like(x)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        onchip.attention(x, x, x, out=out)
        stream.begin_capture()
        onchip.attention(x, x, x, out=out)
        graph = stream.end_capture()
        x *= 2
        graph.launch(stream)
        stream.synchronize()
        cupy.testing.assert_array_equal(out, onchip.attention(x, x, x))


def test_every_device() -> None:
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("one device")
    current = torch.cuda.current_device()
    host = [torch.randn(2, 200, 4, 64).bfloat16() for _ in range(4)]
    expected = passes(*(x.cuda(0) for x in host))
    for index in range(1, count):
        got = passes(*(x.cuda(index) for x in host))
        assert torch.cuda.current_device() == current
        expect_equal([x.to("cuda:0") for x in got], expected)
