# SPDX-License-Identifier: Apache-2.0
"""Arrays in and out: no copies, any strides, read-only inputs, and the rules of each library."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import onchip
from kinds import KINDS, Array, Kind, Producer, export
from onchip import _arrays, _core, _stream

SHAPE = (2, 6, 2, 8)


@pytest.fixture
def x() -> Array:
    return np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Addresses that the core was given, by the names of the arguments."""
    addresses: dict[str, int] = {}

    def spy(method: str, tensor_of: Callable[[Any], _core.Tensor]) -> None:
        original = getattr(_arrays.Operands, method)

        def wrapper(self: Any, *args: Any) -> Any:
            result = original(self, *args)
            tensor = tensor_of(result)
            addresses[tensor.name] = tensor.address
            return result

        monkeypatch.setattr(_arrays.Operands, method, wrapper)

    spy("take", lambda result: result)
    spy("allocate", lambda result: result[1])
    return addresses


# ---------------------------------------------------------------- no copies


def test_nothing_is_copied(any_kind: Kind, x: Array, seen: dict[str, int]) -> None:
    kind = any_kind
    q, k, v = (kind.make(x * n) for n in (1, 2, 3))
    given: dict[str, Any] = {
        "bias": kind.make(x[:1, :2, :1, :6]),
        "alibi_slopes": kind.make_stats(x[0, 0, :, 0]),
        "sinks": kind.make_stats(x[0, 0, :, 0]),
    }
    out, lse = onchip.attention(q, k, v, return_lse=True, **given)
    expected = {"q": q, "k": k, "v": v, "out": out, "lse": lse, **given}
    for name, array in expected.items():
        plain = array.array if isinstance(array, Producer) else array
        assert seen[name] == (
            plain.ctypes.data if isinstance(plain, np.ndarray) else kind.address(plain)
        ), name

    if isinstance(out, onchip.Buffer):
        return  # its user makes an array of it first
    gradients = onchip.attention_backward(q, q, k, v, out, lse, **given)
    for name, array in zip(("dq", "dk", "dv", "dbias", "dsinks"), gradients, strict=True):
        assert seen[name] == kind.address(array), name


@pytest.mark.parametrize("name", [n for n in sorted(KINDS) if n.startswith("jax")])
def test_jax_results_own_their_memory(name: str, x: Array) -> None:
    kind = KINDS[name]()
    q = kind.make(x)
    before = kind.back(q).copy()
    results = [onchip.attention(q, q, q) for _ in range(4)]
    assert len({kind.address(r) for r in results}) == 4
    for r in results[1:]:
        np.testing.assert_array_equal(kind.back(r), kind.back(results[0]))
    np.testing.assert_array_equal(kind.back(q), before)


def test_buffer_outlives_itself(x: Array) -> None:
    result = onchip.attention(Producer(x), Producer(x), Producer(x))
    assert result.shape == SHAPE
    assert result.dtype == "float32"
    first, second = np.from_dlpack(result), np.from_dlpack(result)
    assert first.ctypes.data == second.ctypes.data
    del result, second
    np.testing.assert_array_equal(first, onchip.attention(x, x, x))
    old_protocol = _core.Buffer((2, 3), "int32").__dlpack__()
    assert "dltensor" in repr(old_protocol)
    assert "versioned" not in repr(old_protocol)


def test_buffer_in_torch_and_jax(x: Array) -> None:
    torch = pytest.importorskip("torch")
    result = onchip.attention(Producer(x), Producer(x), Producer(x))
    shared = torch.from_dlpack(result)
    assert shared.data_ptr() == np.from_dlpack(result).ctypes.data


# ---------------------------------------------------------------- strides and views


def layouts(x: Array) -> Iterator[tuple[str, Array]]:
    b, s, h, d = x.shape
    yield "fortran of (b, h, s)", x.transpose(1, 0, 2, 3).copy().transpose(1, 0, 2, 3)
    yield "(b, h, s, d)", x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)
    wide = np.full((b, 2 * s, h, d + 3), np.nan, x.dtype)
    wide[:, ::2, :, 1 : d + 1] = x
    yield "every second row of wider ones", wide[:, ::2, :, 1 : d + 1]
    yield "backwards", x[::-1, ::-1].copy()[::-1, ::-1]
    packed = np.concatenate([np.zeros(3, x.dtype), x.ravel()])[3:].reshape(x.shape)
    yield "off the alignment of vectors", packed


@pytest.mark.parametrize("index", range(5))
def test_strides(index: int, x: Array) -> None:
    name, view = list(layouts(x))[index]
    expected = onchip.attention(x, x, x, causal=True)
    for position in range(3):
        operands = [x, x, x]
        operands[position] = view
        np.testing.assert_array_equal(onchip.attention(*operands, causal=True), expected, name)


def test_results_have_memory_of_their_own(x: Array) -> None:
    before = x.tobytes()
    for operands in ((x, x * 2, x), (x * 2, x, x * 3)):
        with pytest.raises(ValueError, match=r"out: shares memory with [qk]\b"):
            onchip.attention(*operands, out=x)
    assert x.tobytes() == before
    # Beside each other in one array is fine.
    packed = np.stack([x, x, x, x], axis=2)
    q, k, v, out = (packed[:, :, n] for n in range(4))
    onchip.attention(q, k, v, out=out)
    np.testing.assert_array_equal(out, onchip.attention(x, x, x))


def test_broadcast_inputs(x: Array) -> None:
    one = np.broadcast_to(x[:1], SHAPE)
    assert one.strides[0] == 0
    got = onchip.attention(x, one, one)
    np.testing.assert_array_equal(got, onchip.attention(x, one.copy(), one.copy()))


def test_torch_views(x: Array) -> None:
    torch = pytest.importorskip("torch")
    expected = onchip.attention(x, x, x)
    heads_first = torch.from_numpy(x).permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)
    got = onchip.attention(heads_first, heads_first, heads_first)
    np.testing.assert_array_equal(got.numpy(), expected)
    out = torch.zeros(2, 2, 6, 8).permute(0, 2, 1, 3)
    onchip.attention(heads_first, heads_first, heads_first, out=out)
    np.testing.assert_array_equal(out.numpy(), expected)


# ---------------------------------------------------------------- read-only memory


@pytest.mark.parametrize("name", ["numpy-float32", "numpy-bfloat16"])
def test_read_only_inputs(name: str, x: Array) -> None:
    kind = KINDS[name]()
    q = kind.make(x)
    expected = kind.back(onchip.attention(q, q, q))
    q.flags.writeable = False
    np.testing.assert_array_equal(kind.back(onchip.attention(q, q, q)), expected)


def test_read_only_output(x: Array) -> None:
    out = np.full_like(x, 7)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: is read-only"):
        onchip.attention(x, x, x, out=out)
    assert (out == 7).all()


def test_numpy_before_read_only_export(monkeypatch: pytest.MonkeyPatch, x: Array) -> None:
    """NumPy before 2.1 exports no read-only array; its memory is found another way."""
    monkeypatch.setattr(_arrays.family_of("x", x), "_exports_read_only", False)
    expected = onchip.attention(x, x, x)
    frozen = x[:, ::-1].copy()[:, ::-1]
    frozen.flags.writeable = False
    np.testing.assert_array_equal(onchip.attention(frozen, frozen, x), expected)
    with pytest.raises(ValueError, match="out: is read-only"):
        onchip.attention(x, x, x, out=frozen)


# ---------------------------------------------------------------- rules of the libraries


def test_torch_requires_grad(x: Array) -> None:
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(x).requires_grad_()
    got = onchip.attention(q, torch.nn.Parameter(q.detach().clone()), q)
    assert not got.requires_grad
    np.testing.assert_array_equal(got.numpy(), onchip.attention(x, x, x))
    with pytest.raises(ValueError, match="out: requires grad"):
        onchip.attention(q, q, q, out=torch.empty(SHAPE, requires_grad=True))


def test_torch_without_exchange_api(monkeypatch: pytest.MonkeyPatch, x: Array) -> None:
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(x).bfloat16().requires_grad_()
    expected = onchip.attention(q, q, q)
    monkeypatch.setattr(_arrays.family_of("q", q), "_exchange", None)
    assert torch.equal(onchip.attention(q, q, q), expected)


def test_torch_oddities(x: Array) -> None:
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(x)
    negative = torch.complex(q, q).conj().imag
    assert negative.is_neg()
    with pytest.raises(ValueError, match=r"k: .*resolve_neg"):
        onchip.attention(q, negative, q)
    with pytest.raises(TypeError, match=r"v: layout torch.sparse_coo"):
        onchip.attention(q, q, q.to_sparse())
    with pytest.raises((TypeError, NotImplementedError), match="q: "):
        onchip.attention(q.to("meta"), q, q)

    def mapped(row: Any) -> Any:
        return onchip.attention(row, q, q)

    with pytest.raises(TypeError, match="q: "):
        torch.vmap(mapped)(q[None])


def test_torch_default_device(x: Array) -> None:
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(x)
    expected = onchip.attention(q, q, q)
    with torch.device("meta"):
        got = onchip.attention(q, q, q)
    assert torch.equal(got, expected)


def test_jax_rules(x: Array) -> None:
    jax = pytest.importorskip("jax")
    q = jax.numpy.asarray(x)
    with pytest.raises(TypeError, match="out: JAX arrays are immutable"):
        onchip.attention(q, q, q, out=q)
    with pytest.raises(TypeError, match="q: is traced by JAX"):
        jax.jit(lambda a: onchip.attention(a, a, a))(q)
    # Work that JAX has only queued is waited for.
    big = jax.numpy.ones((1, 300, 4, 64))
    late = big
    for _ in range(20):
        late = late + jax.numpy.sin(late) * 0
    np.testing.assert_array_equal(onchip.attention(late, big, big), onchip.attention(big, big, big))


def test_libraries_do_not_mix(x: Array) -> None:
    torch = pytest.importorskip("torch")
    t = torch.from_numpy(x)
    with pytest.raises(TypeError, match="k: is an array of NumPy, expected PyTorch"):
        onchip.attention(t, x, t)
    with pytest.raises(TypeError, match="out: is an array of NumPy, expected PyTorch"):
        onchip.attention(t, t, t, out=np.empty_like(x))
    with pytest.raises(TypeError, match="bias: is an array of PyTorch, expected NumPy"):
        onchip.attention(x, x, x, bias=t[:, :2, :, :6])


def test_small_operands_may_be_numpy(x: Array) -> None:
    torch = pytest.importorskip("torch")
    t = torch.from_numpy(x)
    bias = x[:1, :2, :1, :6]
    slopes = np.array([0.1, 0.2], np.float32)
    lengths = np.array([4, 6], np.int32)
    got = onchip.decode(t, t, t, seqlens_k=lengths, bias=bias, alibi_slopes=slopes, sinks=slopes)
    expected = onchip.decode(
        x, x, x, seqlens_k=lengths, bias=bias, alibi_slopes=slopes, sinks=slopes
    )
    assert isinstance(got, torch.Tensor)
    np.testing.assert_array_equal(got.numpy(), expected)


def test_scalars_may_be_numpy(x: Array) -> None:
    expected = onchip.attention(
        x, x, x, scale=0.5, causal=True, window=(3, -1), dropout_p=0.25, seed=4
    )
    scalars: dict[str, Any] = {
        "scale": np.float32(0.5), "causal": np.True_, "window": [np.int8(3), np.int64(-1)],
        "dropout_p": np.float64(0.25), "seed": np.uint64(4), "softcap": np.int32(0),
    }  # fmt: skip
    got = onchip.attention(x, x, x, **scalars)
    np.testing.assert_array_equal(got, expected)


# ---------------------------------------------------------------- array API and devices


class ArrayApi(Producer):
    """A library with the array API: results are its arrays."""

    @property
    def shape(self) -> Any:
        return self.array.shape

    def __array_namespace__(self) -> type[ArrayApi]:
        return ArrayApi

    @staticmethod
    def from_dlpack(x: Any) -> ArrayApi:
        return ArrayApi(np.from_dlpack(x))


def test_array_api(x: Array, seen: dict[str, int]) -> None:
    got = onchip.attention(ArrayApi(x), ArrayApi(x), ArrayApi(x))
    assert isinstance(got, ArrayApi)
    assert got.array.ctypes.data == seen["out"]
    np.testing.assert_array_equal(got.array, onchip.attention(x, x, x))


class OldProducer(Producer):
    """From before DLPack 1.0: no max_version, legacy capsules."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:  # type: ignore[override]
        return self.array.__dlpack__()


def test_old_dlpack(x: Array) -> None:
    got = onchip.attention(OldProducer(x), OldProducer(x), OldProducer(x))
    np.testing.assert_array_equal(np.from_dlpack(got), onchip.attention(x, x, x))


class OnDevice(Producer):
    """Says that it lies on another device."""

    def __init__(self, array: Array, device: int) -> None:
        super().__init__(array)
        self.device = device
        self.streams: list[int | None] = []

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None
    ) -> Any:
        self.streams.append(stream)
        return export(self.array, max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


def test_stream_of_the_handshake(x: Array) -> None:
    host, gpu = OnDevice(x, 1), OnDevice(x, 2)
    onchip.attention(host, host, host)
    assert host.streams == [None] * 3
    with pytest.raises(NotImplementedError, match="device memory"):
        onchip.attention(gpu, gpu, gpu)
    assert gpu.streams == [_stream.LEGACY] * 3


class FakeCuda:
    """Enough of torch.cuda and of a CUDA tensor to say which stream is current."""

    is_cuda = True
    device = "cuda:1"

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle
        self.cuda = self

    def current_stream(self, device: str) -> FakeCuda:
        assert device == self.device
        return self


def test_torch_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    for handle, expected in ((0, 1), (12345, 12345)):
        fake = FakeCuda(handle)
        monkeypatch.setitem(sys.modules, "torch", fake)
        assert _stream.torch_stream(fake, None) == expected
        monkeypatch.setattr(_stream._core, "current_stream", lambda x, exchange, h=handle: h)
        assert _stream.torch_stream(fake, object()) == expected


class FakeCupy(Producer):
    """A CuPy array, as far as onchip looks at it, whose memory is the host's."""

    handshakes: ClassVar[list[int | None]] = []

    def __init__(self, array: Array) -> None:
        super().__init__(array)
        self.device = contextlib.nullcontext()

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def view(self, dtype: str) -> FakeCupy:
        return FakeCupy(self.array.view(dtype))

    def __dlpack__(self, *, stream: int | None = None) -> Any:  # type: ignore[override]
        self.handshakes.append(stream)
        return self.array.__dlpack__()


@pytest.mark.parametrize("handle", [0, 77])
@pytest.mark.parametrize("name", ["numpy-float32", "numpy-bfloat16"])
def test_cupy(monkeypatch: pytest.MonkeyPatch, x: Array, name: str, handle: int) -> None:
    stream = SimpleNamespace(ptr=handle)
    fake = SimpleNamespace(
        cuda=SimpleNamespace(get_current_stream=lambda: stream),
        empty=lambda shape, dtype: FakeCupy(np.empty(shape, dtype)),
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(FakeCupy, "__module__", "cupy")
    FakeCupy.handshakes.clear()
    q = KINDS[name]().make(x)
    got = onchip.attention(FakeCupy(q), FakeCupy(q), FakeCupy(q))
    assert isinstance(got, FakeCupy)
    assert got.array.dtype == q.dtype
    np.testing.assert_array_equal(got.array, onchip.attention(q, q, q))
    # -1: no ordering asked of CuPy; the launch goes to the stream that the arrays are on.
    assert set(FakeCupy.handshakes) == {-1}


def test_capsule_that_was_consumed(x: Array) -> None:
    class Spent(Producer):
        capsule = x.__dlpack__()

        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

    np.from_dlpack(Spent(x))
    with pytest.raises(TypeError, match=r"q: .*capsule"):
        onchip.attention(Spent(x), Spent(x), Spent(x))


# ---------------------------------------------------------------- the interpreter lock


def test_the_lock_is_released() -> None:
    """While one thread computes, this one keeps running Python."""
    q = np.ones((1, 1500, 4, 64), np.float32)
    onchip.set_num_threads(1)
    try:
        busy = threading.Thread(target=lambda: onchip.attention(q, q, q))
        started = time.perf_counter()
        busy.start()
        ticks, longest, last = 0, 0.0, time.perf_counter()
        while busy.is_alive():
            time.sleep(0)
            now = time.perf_counter()
            longest, last, ticks = max(longest, now - last), now, ticks + 1
        elapsed = time.perf_counter() - started
    finally:
        onchip.set_num_threads(0)
    assert ticks > 20
    assert longest < 0.75 * elapsed


def test_many_threads_agree(x: Array) -> None:
    expected = onchip.attention(x, x, x, causal=True)
    equal: list[bool] = []

    def work() -> None:
        results = (onchip.attention(x, x, x, causal=True) for _ in range(50))
        equal.extend(np.array_equal(result, expected) for result in results)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(equal) == 300
    assert all(equal)


# ---------------------------------------------------------------- overhead


def test_call_overhead() -> None:
    """A call on a tiny problem costs microseconds; the bound leaves room for a busy machine."""
    q = np.ones((1, 1, 1, 8), np.float32)
    best = min(_seconds(lambda: onchip.attention(q, q, q)) for _ in range(20))
    assert best < 100e-6


def _seconds(call: Callable[[], Any], count: int = 200) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count
