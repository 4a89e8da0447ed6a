# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any, ClassVar

from onchip.cli.bench.cells import Cell, Tensors
from onchip.cli.bench.gpu.providers.base import GpuProvider, needed, version_of
from onchip.cli.bench.provider import UnavailableError

WORKSPACE_BYTES = 256 << 20


class FlashInfer(GpuProvider):
    """Its prefill of packed sequences. It has no backward pass."""

    name: ClassVar[str] = "flashinfer"

    def __init__(self, device: str) -> None:
        self._wrapper = needed("flashinfer").BatchPrefillWithRaggedKVCacheWrapper
        self._torch = needed("torch")
        self._workspace = self._torch.empty(WORKSPACE_BYTES, dtype=self._torch.uint8, device=device)

    def facts(self) -> dict[str, str]:
        return version_of("flashinfer-python", "flashinfer")

    def prepare(self, cell: Cell, tensors: Tensors) -> Callable[[], Any]:
        if cell.direction != "forward":
            raise UnavailableError("has no backward pass")
        torch = self._torch
        tokens = cell.batch * cell.seqlen
        starts = torch.arange(
            0, tokens + 1, cell.seqlen, dtype=torch.int32, device=tensors.q.device
        )
        wrapper = self._wrapper(self._workspace, "NHD")
        wrapper.plan(
            starts,
            starts,
            cell.heads,
            cell.heads,
            cell.dim,
            causal=cell.causal,
            q_data_type=tensors.q.dtype,
        )
        packed = [x.view(tokens, cell.heads, cell.dim) for x in tensors[:3]]
        return lambda: [wrapper.run(*packed).view(tensors.q.shape)]
