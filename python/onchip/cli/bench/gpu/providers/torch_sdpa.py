# SPDX-License-Identifier: Apache-2.0
from typing import Any, ClassVar

from onchip.cli.bench.cells import Cell
from onchip.cli.bench.gpu.providers.base import AutogradProvider, needed


class TorchSdpa(AutogradProvider):
    """torch.nn.functional.scaled_dot_product_attention, held to one of its backends."""

    backend: ClassVar[str]

    def __init__(self, device: str) -> None:
        self._torch = needed("torch")
        attention = needed("torch.nn.attention")
        self._backend = getattr(attention.SDPBackend, self.backend)
        self._only = attention.sdpa_kernel

    def facts(self) -> dict[str, str]:
        return {"version": self._torch.__version__}

    def attention(self, cell: Cell, q: Any, k: Any, v: Any) -> Any:
        fused = self._torch.nn.functional.scaled_dot_product_attention
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        with self._only(self._backend):
            return fused(*heads_first, is_causal=cell.causal).transpose(1, 2)


class TorchFlash(TorchSdpa):
    """FlashAttention-2."""

    name: ClassVar[str] = "torch-flash"
    backend: ClassVar[str] = "FLASH_ATTENTION"


class TorchCudnn(TorchSdpa):
    name: ClassVar[str] = "torch-cudnn"
    backend: ClassVar[str] = "CUDNN_ATTENTION"

    def facts(self) -> dict[str, str]:
        return super().facts() | {"cudnn": str(self._torch.backends.cudnn.version())}


class TorchEfficient(TorchSdpa):
    name: ClassVar[str] = "torch-efficient"
    backend: ClassVar[str] = "EFFICIENT_ATTENTION"


class TorchMath(TorchSdpa):
    """torch's own unfused computation."""

    name: ClassVar[str] = "torch-math"
    backend: ClassVar[str] = "MATH"
