# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from onchip.cli.bench.cells import Cell, Tensors
from onchip.cli.bench.cpu.providers.base import CpuProvider
from onchip.cli.bench.cpu.tensors import Array
from onchip.cli.bench.provider import UnavailableError


class TorchSdpa(CpuProvider):
    """torch.nn.functional.scaled_dot_product_attention on the CPU."""

    name: ClassVar[str] = "torch"

    def __init__(self, threads: int) -> None:
        try:
            import torch
        except ImportError as error:
            raise UnavailableError(f"torch: {error}") from error
        self._torch: Any = torch
        torch.set_num_threads(threads)

    def facts(self) -> dict[str, str]:
        torch = self._torch
        return {"version": torch.__version__, "isa": torch.backends.cpu.get_cpu_capability()}

    def prepare(self, cell: Cell, tensors: Tensors) -> Callable[[], Any]:
        torch = self._torch
        q, k, v, dout = (self._shared(x) for x in tensors)
        attention = torch.nn.functional.scaled_dot_product_attention
        if cell.direction == "forward":

            def forward() -> Any:
                with torch.no_grad():
                    return [attention(q, k, v, is_causal=cell.causal)]

            return forward
        inputs = tuple(x.requires_grad_() for x in (q, k, v))
        out = attention(*inputs, is_causal=cell.causal)
        return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)

    def arrays(self, result: Any) -> list[Array]:
        return [x.detach().float().numpy() for x in result]

    def _shared(self, x: Array) -> Any:
        """A tensor on the array's own memory; torch does not know ml_dtypes' bfloat16."""
        torch = self._torch
        if x.dtype.name == "bfloat16":
            return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(x)
