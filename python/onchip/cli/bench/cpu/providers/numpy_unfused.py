# SPDX-License-Identifier: Apache-2.0
import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from onchip.cli import unfused
from onchip.cli.bench.cells import Cell, Tensors
from onchip.cli.bench.cpu.providers.base import CpuProvider
from onchip.cli.bench.cpu.tensors import Array

_CORE_NAMES = (
    "scipy_openblas_get_corename64_",
    "scipy_openblas_get_corename",
    "openblas_get_corename64_",
    "openblas_get_corename",
)


def openblas_core() -> str | None:
    """The kernels that NumPy's OpenBLAS chose, such as "Haswell"; None with another BLAS."""
    np.dot(np.ones((2, 2)), np.ones((2, 2)))
    maps = Path("/proc/self/maps")
    loaded = set(re.findall(r"/\S*openblas\S*", maps.read_text())) if maps.is_file() else set()
    for path in loaded:
        library = ctypes.CDLL(path)
        for name in _CORE_NAMES:
            if hasattr(library, name):
                function = getattr(library, name)
                function.restype = ctypes.c_char_p
                return str(function().decode())
    return None


class NumpyUnfused(CpuProvider):
    """The textbook computation. NumPy has no 16-bit matrix product, so those cells are computed in
    float32 and rounded at the end, conversions included."""

    name: ClassVar[str] = "numpy"

    def __init__(self, threads: int) -> None:
        self._threads = threads  # the runner's environment has told the BLAS

    def facts(self) -> dict[str, str]:
        core = openblas_core()
        return {"version": np.__version__} | ({"openblas": core} if core else {})

    def prepare(self, cell: Cell, tensors: Tensors) -> Callable[[], Any]:
        q, k, v, dout = (x.swapaxes(1, 2) for x in tensors)
        dtype = q.dtype

        def widened(*arrays: Array) -> list[Array]:
            return [x.astype(np.float32, copy=False) for x in arrays]

        if cell.direction == "forward":

            def forward() -> list[Array]:
                wide = widened(q, k, v)
                out = unfused.forward(wide[0], wide[1], wide[2], causal=cell.causal).out
                return [out.astype(dtype, copy=False)]

            return forward
        saved = unfused.forward(*widened(q, k, v), causal=cell.causal)

        def backward() -> list[Array]:
            wide_dout, *wide = widened(dout, q, k, v)
            gradients = unfused.backward(wide_dout, wide[0], wide[1], wide[2], saved)
            return [gradient.astype(dtype, copy=False) for gradient in gradients]

        return backward

    def arrays(self, result: Any) -> list[Array]:
        return [x.astype(np.float32).swapaxes(1, 2) for x in result]
