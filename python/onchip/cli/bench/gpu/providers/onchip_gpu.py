# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any, ClassVar

import onchip
from onchip.cli.bench.cells import Cell, Tensors
from onchip.cli.bench.gpu import hopper
from onchip.cli.bench.gpu.providers.base import GpuProvider
from onchip.cli.bench.provider import UnavailableError


class OnchipGpu(GpuProvider):
    """This library, on torch tensors; its workspace comes from torch and is counted."""

    name: ClassVar[str] = "onchip"

    def __init__(self, device: str) -> None: ...

    def facts(self) -> dict[str, str]:
        return {"version": onchip.__version__}

    def prepare(self, cell: Cell, tensors: Tensors) -> Callable[[], Any]:
        q, k, v, dout = tensors
        if cell.direction == "forward":
            return lambda: [onchip.attention(q, k, v, causal=cell.causal)]

        def forward() -> Any:
            return onchip.attention(q, k, v, causal=cell.causal, return_lse=True)

        def backward(out: Any, lse: Any) -> Any:
            return onchip.attention_backward(dout, q, k, v, out, lse, causal=cell.causal)

        if cell.direction == "backward":
            saved = forward()
            return lambda: backward(*saved)

        def both() -> list[Any]:
            out, lse = forward()
            return [out, *backward(out, lse)]

        return both


class OnchipSafe(OnchipGpu):
    """The same with softmax="safe", which only the forward kernels for Hopper take notice of."""

    name: ClassVar[str] = hopper.SAFE

    def prepare(self, cell: Cell, tensors: Tensors) -> Callable[[], Any]:
        if cell.direction != "forward":
            raise UnavailableError("forward only")
        q, k, v, _ = tensors
        plan = onchip.plan(q, k, v, device=str(q.device), causal=cell.causal, softmax="safe")
        if not plan.kernel.startswith(hopper.KERNELS):
            raise UnavailableError("no kernel for Hopper: the same as onchip")
        return lambda: [onchip.attention(q, k, v, causal=cell.causal, softmax="safe")]
