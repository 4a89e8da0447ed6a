# SPDX-License-Identifier: Apache-2.0
"""The kinds of array that the library takes, each behind one small interface for the tests."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import onchip

Array = np.ndarray[Any, Any]

# JAX would take three quarters of a GPU's memory when it starts.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def export(array: Array, max_version: tuple[int, int] | None) -> Any:
    """`array.__dlpack__`, also by a NumPy that knows no versions (before 2.1)."""
    try:
        return array.__dlpack__(max_version=max_version)
    except TypeError:
        return array.__dlpack__()


class Producer:
    """An array of a library that onchip has never heard of: it has `__dlpack__` and no more."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None
    ) -> Any:
        assert stream is None, "host memory has no stream"
        return export(self.array, max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@dataclass
class Kind:
    dtype: str
    cls: Any  # of results
    make: Callable[[Array], Any]  # from float32 or float64 values
    make_stats: Callable[[Array], Any]  # float32, or float64 where dtype is
    make_int: Callable[[Array], Any]  # int32
    back: Callable[[Any], Array]  # float64
    address: Callable[[Any], int]
    dtype_of: Callable[[Any], str]


def _numpy(dtype: str) -> Kind:
    held: Any = np.dtype(dtype) if dtype != "bfloat16" else _ml_dtypes().bfloat16
    stats = np.float64 if dtype == "float64" else np.float32
    return Kind(
        dtype=dtype,
        cls=np.ndarray,
        make=lambda x: x.astype(held),
        make_stats=lambda x: x.astype(stats),
        make_int=lambda x: x.astype(np.int32),
        back=lambda x: x.astype(np.float64),
        address=lambda x: int(x.ctypes.data),
        dtype_of=lambda x: str(x.dtype),
    )


def _ml_dtypes() -> Any:
    return pytest.importorskip("ml_dtypes")


def _torch(dtype: str) -> Kind:
    torch = pytest.importorskip("torch")
    held = getattr(torch, dtype)
    stats = torch.float64 if dtype == "float64" else torch.float32
    return Kind(
        dtype=dtype,
        cls=torch.Tensor,
        make=lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(held),
        make_stats=lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(stats),
        make_int=lambda x: torch.from_numpy(x.astype(np.int32)),
        back=lambda x: x.detach().double().numpy(),
        address=lambda x: int(x.data_ptr()),
        dtype_of=lambda x: str(x.dtype).removeprefix("torch."),
    )


def _jax(dtype: str, platform: str = "cpu") -> Kind:
    jax = pytest.importorskip("jax")
    held = jax.numpy.dtype(dtype)
    try:
        device = jax.devices(platform)[0]
    except RuntimeError as reason:
        pytest.skip(str(reason))
    # Cast by NumPy: JAX would compile that for every shape.
    return Kind(
        dtype=dtype,
        cls=jax.Array,
        make=lambda x: jax.device_put(x.astype(held), device),
        make_stats=lambda x: jax.device_put(x.astype(np.float32), device),
        make_int=lambda x: jax.device_put(x.astype(np.int32), device),
        back=lambda x: np.asarray(x).astype(np.float64),
        address=lambda x: int(x.unsafe_buffer_pointer()),
        dtype_of=lambda x: str(x.dtype),
    )


def _dlpack(dtype: str) -> Kind:
    return Kind(
        dtype=dtype,
        cls=onchip.Buffer,
        make=lambda x: Producer(x.astype(dtype)),
        make_stats=lambda x: Producer(x.astype(np.float32)),
        make_int=lambda x: Producer(x.astype(np.int32)),
        back=lambda x: np.from_dlpack(x).astype(np.float64),
        address=lambda x: int(np.from_dlpack(x).ctypes.data),
        dtype_of=lambda x: str(np.from_dlpack(x).dtype),
    )


def _torch_cuda(dtype: str) -> Kind:
    torch = pytest.importorskip("torch")
    host = _torch(dtype)
    return dataclasses.replace(
        host,
        make=lambda x: host.make(x).cuda(),
        make_stats=lambda x: host.make_stats(x).cuda(),
        make_int=lambda x: torch.from_numpy(x.astype(np.int32)).cuda(),
        back=lambda x: x.detach().double().cpu().numpy(),
    )


def _cupy(dtype: str) -> Kind:
    cupy = pytest.importorskip("cupy")
    narrow = dtype == "bfloat16"  # travels as the 16-bit integers that hold it
    held: Any = np.dtype(_ml_dtypes().bfloat16 if narrow else dtype)

    def make(x: Array) -> Any:
        return (
            cupy.asarray(x.astype(held).view("u2")).view(held) if narrow else cupy.asarray(x, held)
        )

    def back(x: Any) -> Array:
        values = (
            cupy.asnumpy(x.view("u2")).view(held) if x.dtype == held and narrow else cupy.asnumpy(x)
        )
        return values.astype(np.float64)

    return Kind(
        dtype=dtype,
        cls=cupy.ndarray,
        make=make,
        make_stats=lambda x: cupy.asarray(x.astype(np.float32)),
        make_int=lambda x: cupy.asarray(x.astype(np.int32)),
        back=back,
        address=lambda x: int(x.data.ptr),
        dtype_of=lambda x: str(x.dtype),
    )


GPU_KINDS: dict[str, Callable[[], Kind]] = {
    "cupy-bfloat16": lambda: _cupy("bfloat16"),
    "cupy-float16": lambda: _cupy("float16"),
    "cupy-float32": lambda: _cupy("float32"),
    "jax-cuda-bfloat16": lambda: _jax("bfloat16", "cuda"),
    "jax-cuda-float16": lambda: _jax("float16", "cuda"),
    "jax-cuda-float32": lambda: _jax("float32", "cuda"),
    "torch-cuda-bfloat16": lambda: _torch_cuda("bfloat16"),
    "torch-cuda-float16": lambda: _torch_cuda("float16"),
    "torch-cuda-float32": lambda: _torch_cuda("float32"),
}

# Each dtype and each library once.
GPU_SAMPLE = (
    "cupy-float16",
    "jax-cuda-bfloat16",
    "torch-cuda-bfloat16",
    "torch-cuda-float16",
    "torch-cuda-float32",
)

KINDS: dict[str, Callable[[], Kind]] = {
    "dlpack-float32": lambda: _dlpack("float32"),
    "jax-bfloat16": lambda: _jax("bfloat16"),
    "jax-float16": lambda: _jax("float16"),
    "jax-float32": lambda: _jax("float32"),
    "numpy-bfloat16": lambda: _numpy("bfloat16"),
    "numpy-float16": lambda: _numpy("float16"),
    "numpy-float32": lambda: _numpy("float32"),
    "numpy-float64": lambda: _numpy("float64"),
    "torch-bfloat16": lambda: _torch("bfloat16"),
    "torch-float16": lambda: _torch("float16"),
    "torch-float32": lambda: _torch("float32"),
    "torch-float64": lambda: _torch("float64"),
}


def need_gpu() -> None:
    """Skips, with the reason, where the library has no GPU to compute on."""
    try:
        onchip.device_info("cuda")
    except (NotImplementedError, RuntimeError) as reason:
        pytest.skip(str(reason))


def kind_of(name: str) -> Kind:
    """A kind of either table; skips where it cannot be had."""
    if name in GPU_KINDS:
        need_gpu()
    return {**KINDS, **GPU_KINDS}[name]()


def gpu_params(*names: str) -> list[Any]:
    """Parameters for tests that run on a GPU too: these kinds, or all, with the marks they need."""
    # Frameworks warn about this and that of a machine; it is not what is tested.
    marks = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
    return [pytest.param(name, marks=marks) for name in names or sorted(GPU_KINDS)]
