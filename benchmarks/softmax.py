#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the data cost the softmax of Hopper's forward kernels (docs/numerics.md): times of PyTorch's
tensors with ordinary scores, with bases that move, and with tiles that are computed again.

    python benchmarks/softmax.py [<results.json>]

bfloat16, 16,384 tokens, heads x dimension 2048, sequences of 4096, no mask. Calls turn about; the
median of the rounds, by CUDA events.
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import onchip

SEQLEN, TOKENS, WIDTH = 4096, 16384, 2048
ROUNDS, CALLS = 9, 4
QUERY = 16.0  # what carries a lead: dimension 0 of these rows, and of the keys that lead


class Data(NamedTuple):
    """Every `every`-th tile has a row (all rows if 1) that finds key k ahead by lead(k) nats."""

    name: str
    every: int
    lead: Callable[[torch.Tensor], torch.Tensor]


def first_key(nats: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda key: torch.where(key == 0, nats, 0.0)


CASES = (
    Data("ordinary scores", 0, first_key(0)),
    Data("key 0 ahead by 20 nats, all rows", 1, first_key(20)),
    Data("each block of 128 keys ahead of the last by 4 nats, all rows", 1, lambda k: -k / 32),
    Data("1% of tiles computed again", 100, first_key(200)),
    Data("all tiles computed again", 1, first_key(200)),
)


def tensors(data: Data, dim: int, tile: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shape = (TOKENS // SEQLEN, SEQLEN, WIDTH // dim, dim)
    q, k, v = torch.randn((3, *shape), device="cuda")
    q[..., 0] = 0
    k[..., 0] = data.lead(torch.arange(SEQLEN, device="cuda"))[:, None] * dim**0.5 / QUERY
    if data.every == 1:
        q[..., 0] = QUERY
    elif data.every:
        batch, seqlen, heads, _ = shape
        for number in range(0, batch * seqlen // tile * heads, data.every):
            sequence, place = divmod(number // heads, seqlen // tile)
            q[sequence, place * tile, number % heads, 0] = QUERY
    return [x.to(torch.bfloat16) for x in (q, k, v)]


def milliseconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(CALLS):
                call()
            end.record()
            end.synchronize()
            samples[name].append(start.elapsed_time(end) / CALLS)
    return {name: statistics.median(times) for name, times in samples.items()}


def measure(dim: int) -> list[dict[str, object]]:
    shape = (TOKENS // SEQLEN, SEQLEN, WIDTH // dim, dim)
    plan = onchip.plan(shape, shape, device="cuda:0")
    calls: dict[str, Callable[[], object]] = {}
    for data in CASES:
        q, k, v = tensors(data, dim, plan.tile_q)
        out = torch.empty_like(q)
        for softmax in ("auto", "safe") if data.every == 0 else ("auto",):
            name = data.name if softmax == "auto" else f'{data.name}, softmax="safe"'
            calls[name] = lambda q=q, k=k, v=v, out=out, softmax=softmax: onchip.attention(
                q, k, v, out=out, softmax=softmax
            )
    times = milliseconds(calls)
    usual = times[CASES[0].name]
    rows = []
    for name, time in times.items():
        rows.append({"dim": dim, "kernel": plan.kernel, "data": name, "milliseconds": time})
        print(f"d {dim:3}  {time:7.3f} ms  {usual / time:5.2f}  {name}")
    return rows


def main() -> None:
    rows = [row for dim in (64, 128, 256) for row in measure(dim)]
    if len(sys.argv) > 1:
        document = {
            "device": torch.cuda.get_device_name(),
            "onchip": onchip.__version__,
            "torch": torch.__version__,
            "seqlen": SEQLEN,
            "rows": rows,
        }
        Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
