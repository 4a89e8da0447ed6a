# SPDX-License-Identifier: Apache-2.0
"""Streams, graphs and several devices: work is queued where the caller says, and nothing waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import onchip
from kinds import GPU_KINDS, need_gpu
from onchip import _arrays, _stream

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
torch = pytest.importorskip("torch")

SECOND = 2_000_000_000  # clock cycles, about


@pytest.fixture(autouse=True, scope="module")
def _device() -> None:
    need_gpu()


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


def behind_a_delay(source: list[Any]) -> list[Any]:
    """The results of inputs that a second stream brings after a while."""
    inputs = [torch.zeros_like(x) for x in source]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SECOND // 4)
        for x, value in zip(inputs, source, strict=True):
            x.copy_(value)
        got = passes(*inputs)
    torch.cuda.synchronize()
    return got


def test_a_delayed_producer_on_a_second_stream() -> None:
    source = [normal(2, 200, 4, 64) for _ in range(4)]
    expect_equal(behind_a_delay(source), passes(*source))


def test_the_test_above_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launched on another stream, the kernels do not see the delayed inputs."""
    source = [normal(2, 200, 4, 64) for _ in range(4)]
    expected = passes(*source)
    monkeypatch.setattr(_arrays, "torch_stream", lambda *_: _stream.LEGACY)
    got = behind_a_delay(source)
    assert not torch.equal(got[0], expected[0])


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


def jax_delay(jax: Any) -> Callable[[Any], Any]:
    """x, after a while of work on the device."""
    big = jax.numpy.full((8192, 8192), 1e-4, "bfloat16", device=jax.devices("cuda")[0])

    def work(x: Any, big: Any) -> Any:
        done = jax.lax.fori_loop(0, 150, lambda _, y: (y @ big) * 1e-4, big)
        return x + done[0, 0].astype(x.dtype) * 0

    compiled = jax.jit(work)
    return lambda x: compiled(x, big)


def test_jax_orders_and_does_not_wait() -> None:
    jax = pytest.importorskip("jax")
    make = GPU_KINDS["jax-cuda-bfloat16"]().make
    delay = jax_delay(jax)
    x, dout = (make(np.random.default_rng(n).normal(size=(2, 200, 4, 64))) for n in (0, 1))

    def both(q: Any) -> list[Any]:
        out, lse = onchip.attention(q, q, q, causal=True, return_lse=True)
        given = {"causal": True, "deterministic": True}
        return [out, lse, *onchip.attention_backward(dout, q, q, q, out, lse, **given)]

    expected = [np.asarray(y.astype("float32")) for y in both(delay(x))]  # compiles everything
    start = time.perf_counter()
    late = delay(x)
    got = both(late)
    seconds = time.perf_counter() - start
    assert not late.is_ready(), "the calls waited for the stream, or the delay is too short"
    assert not got[-1].is_ready()
    later = [y.astype("float32") for y in got]  # JAX's own work on what is not there yet
    del late
    assert seconds < 0.2
    for a, b in zip(later, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)


def test_jax_memory_is_not_used_again_too_early() -> None:
    """Inputs and workspace are dropped while the work is queued, and their memory asked for."""
    jax = pytest.importorskip("jax")
    make = GPU_KINDS["jax-cuda-bfloat16"]().make
    delay = jax_delay(jax)
    host = np.random.default_rng(0).normal(size=(4, 500, 8, 64))
    expected = np.asarray(onchip.attention(*3 * [make(host)]).astype("float32"))
    for _ in range(3):
        q, k, v = delay(make(host)), make(host), make(host)
        got = onchip.attention(q, k, v)
        del q, k, v
        rubbish = [jax.numpy.full(host.shape, 7.0, "bfloat16") for _ in range(8)]
        np.testing.assert_array_equal(np.asarray(got.astype("float32")), expected)
        del rubbish


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
    """Both passes; results and workspace come from CuPy's pool, which has them from the first."""
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    x, dout = (cupy.asarray(rng.normal(size=(1, 100, 2, 64)), cupy.float16) for _ in range(2))

    def both() -> list[Any]:
        out, lse = onchip.attention(x, x, x, causal=True, return_lse=True)
        given = {"causal": True, "deterministic": True}
        return [out, lse, *onchip.attention_backward(dout, x, x, x, out, lse, **given)]

    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        both()
        stream.begin_capture()
        got = both()
        graph = stream.end_capture()
        for _ in range(3):
            x *= 0.75
            graph.launch(stream)
            stream.synchronize()
            for a, b in zip(got, both(), strict=True):
                cupy.testing.assert_array_equal(a, b)


def test_threads_and_streams_at_once() -> None:
    problems = [[normal(2, 100 + 40 * n, 4, 64) for _ in range(4)] for n in range(6)]
    expected = [passes(*problem) for problem in problems]
    torch.cuda.synchronize()
    faults: list[BaseException] = []

    def work(n: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    got = passes(*problems[n])
                torch.cuda.current_stream().synchronize()
                expect_equal(got, expected[n])
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(problems))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults


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
