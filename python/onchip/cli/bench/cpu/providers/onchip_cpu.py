# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

import onchip
from onchip.cli.bench.cells import Cell, Tensors
from onchip.cli.bench.cpu.providers.base import CpuProvider
from onchip.cli.bench.cpu.tensors import Array


class OnchipCpu(CpuProvider):
    """This library, on NumPy arrays."""

    name: ClassVar[str] = "onchip"

    def __init__(self, threads: int) -> None:
        onchip.set_num_threads(threads)

    def facts(self) -> dict[str, str]:
        return {"version": onchip.__version__, "isa": onchip.cpu_isa()}

    def prepare(self, cell: Cell, tensors: Tensors) -> Callable[[], Any]:
        q, k, v, dout = (x.swapaxes(1, 2) for x in tensors)
        if cell.direction == "forward":
            return lambda: [onchip.attention(q, k, v, causal=cell.causal)]
        out, lse = onchip.attention(q, k, v, causal=cell.causal, return_lse=True)
        return lambda: onchip.attention_backward(dout, q, k, v, out, lse, causal=cell.causal)

    def arrays(self, result: Any) -> list[Array]:
        return [x.astype(np.float32).swapaxes(1, 2) for x in result]
