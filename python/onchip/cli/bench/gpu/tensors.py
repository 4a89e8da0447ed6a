# SPDX-License-Identifier: Apache-2.0
"""The inputs of a cell as torch tensors, and the result that one head must have."""

from typing import Any

from onchip.cli.bench.cells import Cell, Tensors


def make_tensors(cell: Cell, device: str) -> Tensors:
    """Standard normal values, (B, S, H, D) memory."""
    import torch

    generator = torch.Generator(device).manual_seed(20260101)
    shape = (cell.batch, cell.seqlen, cell.heads, cell.dim)
    dtype = getattr(torch, cell.dtype)
    return Tensors(
        *(torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(4))
    )


def last_head(x: Any) -> Any:
    """(B, S, H, D) -> (S, D) of the last batch entry and head, float32."""
    return x.detach()[-1, :, -1].float()


def expected_results(cell: Cell, tensors: Tensors) -> list[Any]:
    """out, dq, dk, dv of the last head as the pass has them, unfused in float32."""
    import torch

    q, k, v, dout = (last_head(x) for x in tensors)
    scale = cell.dim**-0.5
    s = q @ k.T * scale
    if cell.causal:
        s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu_(1), -torch.inf)
    p = torch.softmax(s, -1)
    out = p @ v
    ds = p * (dout @ v.T - (dout * out).sum(-1, keepdim=True))
    gradients = [ds @ k * scale, ds.T @ q * scale, p.T @ dout]
    return {"forward": [out], "backward": gradients, "both": [out, *gradients]}[cell.direction]


def relative_error(results: Any, expected: list[Any]) -> float:
    """Largest error over the largest value, of the worst of the results."""
    import torch

    errors = [
        (last_head(x) - y).abs().max() / y.abs().max().clamp_min(1e-30)
        for x, y in zip(results, expected, strict=True)
    ]
    return float(torch.stack(errors).max())  # NaN where any is
