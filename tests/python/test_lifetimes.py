# SPDX-License-Identifier: Apache-2.0
"""What is lent to a call is given back when the call ends, whichever way it ends."""

from __future__ import annotations

import ctypes
import gc
import itertools
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import onchip
from kinds import Array, Producer, export, gpu_params, kind_of
from onchip import _arrays

_MAX_VERSION = (1, 1)
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_api = ctypes.pythonapi
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Loans:
    """Counts the capsules that were handed out and the calls of their deleters."""

    def __init__(self) -> None:
        self.lent, self.returned = 0, 0
        self._kept: list[Any] = []

    def count(self, capsule: Any) -> Any:
        """The same capsule, with a deleter that counts and then calls the first one."""
        name = _api.PyCapsule_GetName(capsule)
        address = _api.PyCapsule_GetPointer(capsule, name)
        # DLManagedTensorVersioned and DLManagedTensor: where `deleter` lies.
        self.count_by(address + (16 if name == b"dltensor_versioned" else 56))
        return capsule

    def count_by(self, deleter_at: int) -> None:
        """Counts by the deleter that lies at that address."""
        slot = ctypes.c_void_p.from_address(deleter_at)
        first = _DELETER(slot.value)

        def deleter(managed: int) -> None:
            self.returned += 1
            first(managed)

        counting = _DELETER(deleter)
        self._kept.append(counting)
        slot.value = ctypes.cast(counting, ctypes.c_void_p).value
        self.lent += 1

    def expect_returned(self, least: int) -> None:
        gc.collect()
        assert self.lent >= least
        assert self.returned == self.lent


class Lender(Producer):
    """An unknown library's array that counts its loans."""

    def __init__(self, array: Array, loans: Loans, versioned: bool) -> None:
        super().__init__(array)
        self.loans, self.versioned = loans, versioned

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None
    ) -> Any:
        return self.loans.count(export(self.array, _MAX_VERSION if self.versioned else None))


class Stranger(Lender):
    """One whose capsule says something that the library refuses."""

    def __init__(self, array: Array, loans: Loans, versioned: bool, offset: int, value: int):
        super().__init__(array, loans, versioned)
        self.offset, self.value = offset, value

    def __dlpack__(self, **kwargs: Any) -> Any:
        capsule = super().__dlpack__(**kwargs)
        address = _api.PyCapsule_GetPointer(capsule, _api.PyCapsule_GetName(capsule))
        at = address + self.offset + (32 if self.versioned else 0)
        ctypes.c_int32.from_address(at).value = self.value
        return capsule


Lend = Callable[[Array], Any]


@pytest.fixture
def loans() -> Loans:
    return Loans()


@pytest.fixture(params=["versioned", "unversioned"])
def versioned(request: pytest.FixtureRequest) -> bool:
    if request.param == "unversioned":
        return False
    if "versioned" not in repr(export(np.zeros(1), _MAX_VERSION)):
        pytest.skip("this NumPy knows no versions of DLPack")
    return True


@pytest.fixture
def lend(loans: Loans, versioned: bool) -> Lend:
    return lambda x: Lender(x, loans, versioned)


def floats(*shape: int) -> Array:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int32)


def dense(lend: Lend) -> dict[str, Any]:
    q, kv = floats(2, 5, 2, 8), floats(2, 6, 1, 8)
    return {
        "q": lend(q), "k": lend(kv), "v": lend(kv), "bias": lend(floats(1, 2, 5, 1)),
        "alibi_slopes": lend(floats(2)), "sinks": lend(floats(2)),
    }  # fmt: skip


def packed(lend: Lend) -> dict[str, Any]:
    q, kv = floats(5, 2, 8), floats(6, 1, 8)
    return {
        "q": lend(q), "k": lend(kv), "v": lend(kv),
        "cu_seqlens_q": lend(ints(0, 2, 5)), "cu_seqlens_k": lend(ints(0, 4, 6)),
        "seqused_q": lend(ints(1, 3)), "seqused_k": lend(ints(4, 0)),
    }  # fmt: skip


def backward_of(forward: Any, backward: Any, lend: Lend, given: dict[str, Any]) -> Any:
    plain = {n: x.array for n, x in given.items()}
    out, lse = forward(**plain, return_lse=True)
    return backward(lend(out), out=lend(out), lse=lend(lse), dlse=lend(lse), **given)


def every_function(lend: Lend) -> Iterator[Callable[[], Any]]:
    """A call of each, with every array that it takes."""
    yield lambda: onchip.attention(**dense(lend), return_lse=True)
    yield lambda: onchip.attention(**dense(lend), out=lend(floats(2, 5, 2, 8)))
    yield lambda: onchip.attention_varlen(**packed(lend), return_lse=True)
    yield lambda: onchip.decode(
        lend(floats(2, 1, 2, 8)), lend(floats(4, 3, 1, 8)), lend(floats(4, 3, 1, 8)),
        seqlens_k=lend(ints(4, 2)), block_table=lend(ints(0, 1, 2, 3).reshape(2, 2)), split_size=2,
    )  # fmt: skip
    yield lambda: backward_of(onchip.attention, onchip.attention_backward, lend, dense(lend))
    yield lambda: backward_of(
        onchip.attention_varlen, onchip.attention_varlen_backward, lend, packed(lend)
    )
    yield lambda: onchip.merge_states(
        [lend(floats(2, 5, 2, 8))] * 2, [lend(floats(2, 2, 5)), lend(floats(2, 2, 5))]
    )
    yield lambda: onchip.merge_states(lend(floats(3, 2, 5, 2, 8)), lend(floats(3, 2, 2, 5)))
    yield lambda: onchip.dropout_mask((1, 1, 2, 3), 0.5, seed=1, like=lend(floats(1)))


@pytest.mark.parametrize("number", range(9))
def test_arrays_are_given_back(loans: Loans, lend: Lend, number: int) -> None:
    call = list(every_function(lend))[number]
    result = call()
    loans.expect_returned(0 if number >= 8 else 2)
    del result


def wrong(name: str, x: Array) -> Callable[[Lend], dict[str, Any]]:
    return lambda lend: {**dense(lend), name: lend(x)}


REFUSED: dict[str, Callable[[Lend], dict[str, Any]]] = {
    "a shape": wrong("v", floats(2, 7, 1, 8)),
    "axes": wrong("k", floats(6, 1, 8)),
    "too many axes": wrong("q", floats(1, 1, 2, 5, 2, 8)),
    "a dtype": wrong("bias", floats(1, 2, 5, 1).astype(np.float16)),
    "an unknown dtype": wrong("k", floats(2, 6, 1, 8).astype(np.complex64)),
    "an array of another library": lambda lend: {**dense(lend), "v": floats(2, 6, 1, 8)},
    "no array": lambda lend: {**dense(lend), "sinks": 1.0},
    "out in the wrong shape": wrong("out", floats(2, 5, 2, 9)),
    "out with a gap in the last axis": wrong("out", floats(2, 5, 2, 16)[..., ::2]),
    "an option": lambda lend: {**dense(lend), "softcap": -1.0},
}


@pytest.mark.parametrize("what", REFUSED)
def test_arrays_are_given_back_where_a_call_is_refused(loans: Loans, lend: Lend, what: str) -> None:
    given = REFUSED[what](lend)
    with pytest.raises((TypeError, ValueError)):
        onchip.attention(**given)
    loans.expect_returned(0 if what == "an option" else 1)


@pytest.mark.parametrize(
    ("versioned", "what"),
    [
        *itertools.product(["versioned", "unversioned"], ["the device", "no axes"]),
        ("versioned", "the version"),
    ],
    indirect=["versioned"],
)
def test_capsules_that_are_refused_are_given_back(loans: Loans, versioned: bool, what: str) -> None:
    """DLTensor: data at 0, device type at 8, ndim at 16; the version lies at the very front."""
    offset, value = {"the device": (8, 4), "no axes": (16, 0), "the version": (-32, 2)}[what]
    q = Stranger(floats(2, 5, 2, 8), loans, versioned, offset, value)
    with pytest.raises((TypeError, ValueError, NotImplementedError)):
        onchip.attention(q, q, q)
    loans.expect_returned(1)


def test_out_that_is_an_input_is_given_back(loans: Loans, lend: Lend) -> None:
    x = floats(2, 5, 2, 8)
    with pytest.raises(ValueError, match="shares memory"):
        onchip.attention(lend(x), lend(x), lend(x), out=lend(x))
    loans.expect_returned(4)


class Exchange(ctypes.Structure):
    """DLPack's C exchange API."""

    Allocator: ClassVar[Any] = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    _fields_: ClassVar[Any] = [
        ("version", ctypes.c_uint32 * 2),
        ("previous", ctypes.c_void_p),
        ("allocate", Allocator),
        ("others", ctypes.c_void_p * 4),
    ]


@pytest.mark.parametrize("refused", [False, True])
def test_workspace_of_torch(loans: Loans, monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    """The library's allocator lends it; where that refuses, the way through Python is taken."""
    torch = pytest.importorskip("torch")
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        pytest.skip("this PyTorch has no C exchange API")
    name = b"dlpack_exchange_api"
    exchange = Exchange.from_address(_api.PyCapsule_GetPointer(capsule, name))
    calls = []

    @Exchange.Allocator
    def allocate(prototype: int, made: int, context: int, set_error: int) -> int:
        calls.append(made)
        if refused:
            return -1
        status: int = exchange.allocate(prototype, made, context, set_error)
        loans.count_by(ctypes.c_void_p.from_address(made).value + 16)
        return status

    counting = Exchange(exchange.version, exchange.previous, allocate, exchange.others)
    q = torch.from_numpy(floats(2, 5, 2, 8))
    expected = onchip.attention(q, q, q)
    replaced = _api.PyCapsule_New(ctypes.addressof(counting), name, None)
    monkeypatch.setattr(_arrays.family_of("q", q), "_exchange", replaced)
    assert torch.equal(onchip.attention(q, q, q), expected)
    assert len(calls) == 1
    loans.expect_returned(0 if refused else 1)


def test_jax_arrays_are_given_back() -> None:
    """A loan of JAX, whose capsules do not call their deleters, keeps an array alive."""
    jax = pytest.importorskip("jax")
    count = len(jax.live_arrays())
    x = jax.numpy.ones((2, 5, 2, 8))
    kept = x.__dlpack__()
    given = {"alibi_slopes": jax.numpy.ones(2), "sinks": jax.numpy.ones(2)}
    out, lse = onchip.attention(x, x, x, return_lse=True, **given)
    gradients = onchip.attention_backward(x, x, x, x, out, lse, **given)
    for wrong_v in (x[:, :4], jax.numpy.ones((2, 5, 2, 8), "float16"), np.ones((2, 5, 2, 8))):
        with pytest.raises((TypeError, ValueError)):
            onchip.attention(x, x, wrong_v)
    del x, out, lse, gradients, given, wrong_v
    gc.collect()
    assert len(jax.live_arrays()) == count + 1
    del kept
    gc.collect()
    assert len(jax.live_arrays()) == count


# ---------------------------------------------------------------- JAX on a GPU


class Gpu:
    platform = "gpu"


GPU = Gpu()


class Mark:
    """As much of a JAX array on a GPU as the end of a call looks at."""

    def devices(self) -> set[Any]:
        return {GPU}

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def test_what_jax_waits_with_outlives_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[weakref.ref[Mark]] = []

    def zeros(*_: Any, **__: Any) -> Mark:
        mark = Mark()
        marks.append(weakref.ref(mark))
        return mark

    fake = SimpleNamespace(
        numpy=SimpleNamespace(zeros=zeros),
        jit=lambda function, **_: function,
        dlpack=SimpleNamespace(from_dlpack=lambda x: x),
        block_until_ready=lambda x: x,
    )
    monkeypatch.setitem(sys.modules, "jax", fake)
    family = _arrays.Jax()
    for _ in range(3):
        family.finish(Mark(), Mark(), 1)
    del family
    gc.collect()
    assert len(marks) == 1
    assert marks[0]() is not None


LAST_CALLS = """
import sys
sys.path[:0] = {path!r}
from kinds import kind_of
import numpy as np, onchip
kind = kind_of({kind!r})
x = kind.make(np.ones((1, 64, 2, 64)))
for _ in range(20):
    out, lse = onchip.attention(x, x, x, return_lse=True)
    gradients = onchip.attention_backward(x, x, x, x, out, lse)
"""


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("name", gpu_params("jax-cuda-float16", "jax-cuda-float32"))
def test_an_interpreter_that_ends_in_a_call(name: str, turn: int) -> None:
    """Nothing is waited for: views of arrays, and work, are still out when Python ends."""
    kind_of(name)
    code = LAST_CALLS.format(path=sys.path, kind=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
