# SPDX-License-Identifier: Apache-2.0
from typing import Any, ClassVar

from onchip.cli.bench.cells import Cell
from onchip.cli.bench.gpu.providers.base import AutogradProvider, needed


def unfused_attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Of torch's (B, S, H, D) tensors; one head of k and v may serve several of q. S and P are
    written to memory, in the dtype of the inputs."""
    torch = needed("torch")
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if group > 1:
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    s = q * q.shape[3] ** -0.5 @ k.transpose(-1, -2)
    if causal:
        # In place: no further matrix of the size of S.
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu_(1)
        s.masked_fill_(hidden, -torch.inf)
    return (torch.softmax(s, -1) @ v).transpose(1, 2)


class Unfused(AutogradProvider):
    """The textbook computation: a matrix product, a softmax, a matrix product."""

    name: ClassVar[str] = "unfused"

    def __init__(self, device: str) -> None:
        self._torch = needed("torch")

    def facts(self) -> dict[str, str]:
        return {"version": f"torch {self._torch.__version__}"}

    def attention(self, cell: Cell, q: Any, k: Any, v: Any) -> Any:
        return unfused_attention(q, k, v, cell.causal)
