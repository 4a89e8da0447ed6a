# SPDX-License-Identifier: Apache-2.0
from typing import Any, ClassVar

from onchip.cli.bench.cells import Cell
from onchip.cli.bench.gpu.providers.base import AutogradProvider, needed


class Unfused(AutogradProvider):
    """The textbook computation: a matrix product, a softmax, a matrix product. S and P are written
    to memory, in the dtype of the inputs."""

    name: ClassVar[str] = "unfused"

    def __init__(self, device: str) -> None:
        self._torch = needed("torch")

    def facts(self) -> dict[str, str]:
        return {"version": f"torch {self._torch.__version__}"}

    def attention(self, cell: Cell, q: Any, k: Any, v: Any) -> Any:
        torch = self._torch
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        s = q * cell.dim**-0.5 @ k.transpose(-1, -2)
        if cell.causal:
            # In place: no further matrix of the size of S.
            hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu_(1)
            s.masked_fill_(hidden, -torch.inf)
        return (torch.softmax(s, -1) @ v).transpose(1, 2)
