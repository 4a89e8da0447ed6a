# SPDX-License-Identifier: Apache-2.0
"""Taking the caller's arrays without a copy, and allocating results as arrays of the same kind.

A *family* is one library of arrays. Nothing here imports one: an array that is handed in proves
that its library is already in `sys.modules`.

All arrays of a call belong to one family. Beside arrays in host memory, the small operands
(`SMALL`: lengths, block table, bias, slopes and sinks) may also be NumPy arrays.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

from onchip import _core
from onchip._stream import cupy_stream, dlpack_stream, torch_stream, wait_for

_DLPACK_VERSION = (1, 1)

SMALL = frozenset(
    (
        "alibi_slopes",
        "bias",
        "block_table",
        "cu_seqlens_k",
        "cu_seqlens_q",
        "seqlens_k",
        "seqused_k",
        "seqused_q",
        "sinks",
    )
)


class Family:
    """Arrays known only by `__dlpack__`; results come through the array API where there is one."""

    name = "DLPack"

    def stream(self, x: Any) -> int | None:
        """The stream of calls on `x`; None in host memory."""
        return dlpack_stream(x)

    def take(self, name: str, x: Any, stream: int | None) -> _core.Tensor:
        """The memory of `x`, ready to be read on `stream`."""
        try:
            capsule = x.__dlpack__(stream=stream, max_version=_DLPACK_VERSION)
        except TypeError:  # from before DLPack 1.0, without max_version
            capsule = x.__dlpack__(stream=stream)
        return _core.Tensor(name, capsule)

    def check_writable(self, name: str, x: Any) -> None:
        """Raises where `x` must not be written, for reasons that its memory does not show."""

    def empty(self, like: Any, shape: Sequence[int], dtype: str) -> Any:
        """Uninitialised memory beside `like`: an array, or a Buffer for `finish`."""
        if int(like.__dlpack_device__()[0]) != 1:
            raise NotImplementedError(
                f"arrays of {type(like).__module__} bring no way to allocate device memory"
            )
        return _core.Buffer(shape, dtype)

    def lend_workspace(self, call: _core.Call) -> bool:
        """Gives a prepared `call` its workspace if there is a quicker way than through `empty`."""
        return False

    def finish(self, like: Any, x: Any, stream: int | None) -> Any:
        """The array to hand to the caller for what `empty` returned, now filled on `stream`."""
        if hasattr(like, "__array_namespace__"):
            return like.__array_namespace__().from_dlpack(x)
        return x


class NumPy(Family):
    name = "NumPy"

    def __init__(self) -> None:
        self._np = sys.modules["numpy"]
        major, minor = self._np.__version__.split(".")[:2]
        self._exports_read_only = (int(major), int(minor)) >= (2, 1)

    def stream(self, x: Any) -> int | None:
        return None

    def take(self, name: str, x: Any, stream: int | None) -> _core.Tensor:
        dtype = x.dtype
        held = None
        if dtype.kind == "V" and dtype.name == "bfloat16":  # NumPy cannot export ml_dtypes' type
            x, held = x.view(self._np.uint16), "bfloat16"
        if self._exports_read_only:
            return _core.Tensor(name, x.__dlpack__(max_version=_DLPACK_VERSION), None, held)
        if x.flags.writeable:
            return _core.Tensor(name, x.__dlpack__(), None, held)
        strides = [step // x.itemsize for step in x.strides]
        return _core.Tensor.at(
            name, x.ctypes.data, list(x.shape), strides, held or dtype.name, True, x
        )

    def empty(self, like: Any, shape: Sequence[int], dtype: str) -> Any:
        return self._np.empty(shape, like.dtype if dtype == "bfloat16" else dtype)

    def finish(self, like: Any, x: Any, stream: int | None) -> Any:
        return x


class Torch(Family):
    name = "PyTorch"

    def __init__(self, cls: type) -> None:
        torch = sys.modules["torch"]
        self._strided, self._empty = torch.strided, torch.empty
        self._exchange = getattr(cls, "__dlpack_c_exchange_api__", None)
        self._dtypes = {
            name: getattr(torch, name)
            for name in ("float64", "float32", "float16", "bfloat16", "int32", "uint8")
        }

    def stream(self, x: Any) -> int | None:
        return torch_stream(x, self._exchange)

    def take(self, name: str, x: Any, stream: int | None) -> _core.Tensor:
        if x.is_neg():  # a lazy negation that DLPack drops
            raise ValueError(f"{name}: has its negative bit set; expected x.resolve_neg()")
        try:
            if self._exchange is not None:
                return _core.Tensor(name, x, self._exchange)
            return _core.Tensor(name, x.detach().__dlpack__(stream=-1 if stream else None))
        except (BufferError, RuntimeError, TypeError):
            if x.layout is not self._strided:
                raise TypeError(f"{name}: layout {x.layout}, expected torch.strided") from None
            raise

    def check_writable(self, name: str, x: Any) -> None:
        if x.requires_grad:
            raise ValueError(f"{name}: requires grad, expected a tensor without (x.detach())")

    def empty(self, like: Any, shape: Sequence[int], dtype: str) -> Any:
        # PyTorch takes half a microsecond longer over a shape in one piece.
        return self._empty(*shape, dtype=self._dtypes[dtype], device=like.device)

    def lend_workspace(self, call: _core.Call) -> bool:
        return self._exchange is not None and call.allocate(self._exchange)

    def finish(self, like: Any, x: Any, stream: int | None) -> Any:
        return x


class CuPy(Family):
    name = "CuPy"

    def stream(self, x: Any) -> int | None:
        return cupy_stream(x)

    def take(self, name: str, x: Any, stream: int | None) -> _core.Tensor:
        held = None
        if x.dtype.kind == "V" and x.dtype.name == "bfloat16":
            x, held = x.view("uint16"), "bfloat16"
        # The launch goes to CuPy's own current stream: no order has to be made (-1).
        return _core.Tensor(name, x.__dlpack__(stream=-1), None, held)

    def empty(self, like: Any, shape: Sequence[int], dtype: str) -> Any:
        with like.device:
            return sys.modules["cupy"].empty(shape, like.dtype if dtype == "bfloat16" else dtype)

    def finish(self, like: Any, x: Any, stream: int | None) -> Any:
        return x


class _Filled:
    """Memory that JAX allocated and a call on `stream` filled, to be taken as a new array."""

    def __init__(self, x: Any, stream: int) -> None:
        self._x, self._stream = x, stream

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._x.__dlpack_device__()
        return device

    def __dlpack__(self, *, stream: int, **_: Any) -> Any:
        wait_for(self._stream, waiting=stream)
        return self._x.__dlpack__(stream=stream)


def _never_freed(x: Any) -> Any:
    """`x`, which outlives the interpreter. XLA aborts the process where an array dies of which
    DLPack views are still out, and its threads may be late to return those of the last call."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(x))
    return x


class Jax(Family):
    """JAX arrays are immutable and may share memory with others, so no result is written into one
    that the caller sees. In host memory it is computed in a Buffer, which JAX then takes over.

    On a GPU the work runs on one of the streams that JAX has for work of others: DLPack makes it
    wait for the inputs, and each result becomes an array that JAX knows to be ready when the stream
    has got there. XLA's own stream is then made to wait for it, so that memory which is freed after
    the call (inputs, workspace) is not used again too early. The host waits for nothing until
    Python ends.
    """

    name = "JAX"

    def __init__(self) -> None:
        self._jax = sys.modules["jax"]
        self._marks: dict[Any, Any] = {}  # by device: an array of one shape, to compile once
        # keep_unused: without it the argument would be dropped, and nobody would wait for it.
        self._await = self._jax.jit(lambda x: 0, keep_unused=True)
        atexit.register(self._end)

    def _end(self) -> None:
        """Waits for all work: its arrays are given back by XLA's threads as it ends, which must not
        meet an interpreter that goes down."""
        for mark in self._marks.values():
            self._jax.block_until_ready(self._await(mark))

    def stream(self, x: Any) -> int | None:
        (device,) = x.devices()
        if device.platform != "gpu":
            return None
        stream: int = device.get_stream_for_external_ready_events()  # another one each time
        return stream

    def take(self, name: str, x: Any, stream: int | None) -> _core.Tensor:
        if stream is None:
            x.block_until_ready()
        return _core.Tensor(name, x.__dlpack__(stream=stream))

    def check_writable(self, name: str, x: Any) -> None:
        raise TypeError(f"{name}: JAX arrays are immutable, expected none; use the returned array")

    def empty(self, like: Any, shape: Sequence[int], dtype: str) -> Any:
        (device,) = like.devices()
        if device.platform != "gpu":
            return _core.Buffer(shape, dtype)
        return self._jax.numpy.empty(shape, dtype, device=device)

    def finish(self, like: Any, x: Any, stream: int | None) -> Any:
        take_over = self._jax.dlpack.from_dlpack
        if stream is None:
            return take_over(x)
        (device,) = like.devices()
        if device not in self._marks:
            self._marks[device] = _never_freed(self._jax.numpy.zeros(1, "uint8", device=device))
        result = take_over(_Filled(x, stream))
        self._await(take_over(_Filled(self._marks[device], stream)))
        return result


_MAKERS: dict[str, Callable[[type], Family]] = {
    "numpy": lambda cls: NumPy(),
    "torch": Torch,
    "cupy": lambda cls: CuPy(),
    "jax": lambda cls: Jax(),
    "jaxlib": lambda cls: Jax(),
}
_families: dict[str, Family] = {}
_family_of_type: dict[type, Family] = {}


def _describe(x: object) -> str:
    cls = type(x)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


def _find_family(name: str, x: object) -> Family:
    classes = type(x).__mro__
    if any(cls.__name__ == "Tracer" and cls.__module__.startswith("jax") for cls in classes):
        raise TypeError(
            f"{name}: is traced by JAX (jit, grad or vmap), expected an array: "
            "transformations are not supported, gradients come from attention_backward"
        )
    if not hasattr(type(x), "__dlpack__"):
        raise TypeError(
            f"{name}: expected an array (NumPy, PyTorch, JAX, CuPy, or any with __dlpack__), "
            f"got {_describe(x)}"
        )
    if any(cls.__name__ == "MaskedArray" for cls in classes):
        raise TypeError(f"{name}: expected an array without a mask, got {_describe(x)}")
    for cls in classes:
        library = cls.__module__.partition(".")[0]
        if library in _MAKERS:
            key = {"jaxlib": "jax"}.get(library, library)
            if key not in _families:
                _families[key] = _MAKERS[library](cls)
            return _families[key]
    return _families.setdefault("dlpack", Family())


def family_of(name: str, x: object) -> Family:
    """The family of the array `x`; TypeError naming the argument where it is no array."""
    cls = type(x)
    family = _family_of_type.get(cls)
    if family is None:
        family = _family_of_type[cls] = _find_family(name, x)
    return family


class Operands:
    """The arrays of one call. `lead` decides family, device and stream."""

    __slots__ = ("call", "family", "lead", "stream", "workspace")

    def __init__(self, call: _core.Call, name: str, lead: Any) -> None:
        self.call = call
        self.family = family_of(name, lead)
        self.lead = lead
        self.stream = self.family.stream(lead)
        self.workspace: _core.Tensor | None = None  # kept until the results are finished

    def take(self, name: str, x: Any) -> _core.Tensor:
        """The memory of `x`, after checking that its family may stand beside the lead's."""
        family = self.family if type(x) is type(self.lead) else self.family_beside(name, x)
        try:
            return family.take(name, x, self.stream)
        except BufferError as error:
            raise TypeError(f"{name}: cannot be shared through DLPack: {error}") from error

    def family_beside(self, name: str, x: Any) -> Family:
        """The family of `x`; TypeError where it may not stand beside the lead's."""
        family = family_of(name, x)
        small = name in SMALL and self.stream is None
        if family is not self.family and not (small and family.name == "NumPy"):
            also = " or NumPy" if small and self.family.name != "NumPy" else ""
            raise TypeError(
                f"{name}: is an array of {family.name}, expected {self.family.name}{also} "
                "like the others"
            )
        return family

    def read(self, field: str, x: Any, name: str | None = None) -> _core.Tensor:
        """Makes `x` the input `field` of the call; `name` is what the caller calls it."""
        tensor = self.take(name or field, x)
        self.call.set(field, tensor)
        return tensor

    def write(self, field: str, x: Any) -> None:
        """Makes the caller's `x` the output `field`."""
        tensor = self.take(field, x)
        self.family.check_writable(field, x)
        self.call.set(field, tensor, True)

    def create(self, field: str, shape: Sequence[int], dtype: str) -> Any:
        """Allocates the output `field`; give the result to `finish` after the run."""
        made, tensor = self.allocate(field, shape, dtype)
        self.call.set(field, tensor)
        return made

    def allocate(self, name: str, shape: Sequence[int], dtype: str) -> tuple[Any, _core.Tensor]:
        """Memory of the lead's family, and the view of it."""
        made = self.family.empty(self.lead, shape, dtype)
        if type(made) is _core.Buffer:
            return made, _core.Tensor(name, made)
        return made, self.family.take(name, made, self.stream)

    def finish(self, made: Any) -> Any:
        return self.family.finish(self.lead, made, self.stream)

    def run(self) -> None:
        """Plans, allocates the workspace, computes."""
        size = self.call.prepare()
        if size and not self.family.lend_workspace(self.call):
            _, self.workspace = self.allocate("workspace", (size,), "uint8")
        self.call.run(self.workspace, self.stream or 0)
