# SPDX-License-Identifier: Apache-2.0
from typing import Any, ClassVar

from onchip.cli.bench.cells import Cell
from onchip.cli.bench.gpu.providers.base import AutogradProvider, needed, version_of


class FlashAttn(AutogradProvider):
    """A package with a `flash_attn_func` of (B, S, H, D) tensors."""

    module: ClassVar[str]
    distributions: ClassVar[tuple[str, ...]]

    def __init__(self, device: str) -> None:
        self._function = needed(self.module).flash_attn_func

    def facts(self) -> dict[str, str]:
        return version_of(*self.distributions)

    def attention(self, cell: Cell, q: Any, k: Any, v: Any) -> Any:
        result = self._function(q, k, v, causal=cell.causal)
        return result[0] if isinstance(result, tuple) else result  # some also return lse


class FlashAttn2(FlashAttn):
    name: ClassVar[str] = "flash_attn"
    module: ClassVar[str] = "flash_attn"
    distributions: ClassVar[tuple[str, ...]] = ("flash-attn",)


class FlashAttn3(FlashAttn):
    name: ClassVar[str] = "flash_attn_interface"
    module: ClassVar[str] = "flash_attn_interface"
    distributions: ClassVar[tuple[str, ...]] = ("flash-attn-3", "flash_attn_interface")


class FlashAttn4(FlashAttn):
    name: ClassVar[str] = "flash_attn.cute"
    module: ClassVar[str] = "flash_attn.cute"
    distributions: ClassVar[tuple[str, ...]] = ("flash-attn-4", "flash-attn-cute")
