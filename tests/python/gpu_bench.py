# SPDX-License-Identifier: Apache-2.0
"""What stands in for a GPU and its results where there is none."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from onchip.cli.bench.gpu import hopper
from onchip.cli.bench.gpu.grid import grid

RATES = {"onchip": 300e12, "torch-flash": 280e12, "torch-cudnn": 500e12, "unfused": 40e12}
DEVICE = {
    "name": "Test GPU",
    "compute_capability": 90,
    "units": 132,
    "on_chip_bytes": 232448,
    "l2_bytes": 50 << 20,
    "memory_bytes": 141 * 10**9,
    "bandwidth": 4.8e12,
    "flops_16bit": 989e12,
}

# What torch says of autograd's thread.
NO_CONTEXT = (
    "Attempting to run cuBLAS, but there was no current CUDA context! Attempting to set the "
    "primary context... (Triggered internally at "
    "/pytorch/aten/src/ATen/cuda/CublasHandlePool.cpp:335.)"
)


def noisy(attention: Callable[..., Any], said: str) -> Callable[..., Any]:
    """The same function of torch tensors, with a backward pass that warns."""
    import torch

    class Noise(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, dx: Any) -> Any:
            warnings.warn(said, UserWarning, stacklevel=1)
            return dx

    return lambda *x, **options: Noise.apply(attention(*x, **options))


class HostMeter:
    """The instruments of `CudaMeter`, for tensors in host memory."""

    device = "cpu"

    def facts(self) -> dict[str, Any]:
        return DEVICE

    def clock(self, direction: str) -> HostMeter:
        return self

    def sampler(self, call: Callable[[], Any], calls: int) -> Callable[[], float]:
        def sample() -> float:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            return time.perf_counter() - start

        return sample

    def share_bytes(self) -> int:
        return 1 << 30

    def held_bytes(self) -> int:
        return 0

    def peak_bytes(self, call: Callable[[], Any]) -> int | None:
        call()
        return 1 << 20

    def kernels(self, call: Callable[[], Any]) -> list[dict[str, Any]]:
        call()
        return [{"name": "kernel", "microseconds": 1.5}]


def _result(flops: float, rate: float, peak: float) -> dict[str, Any]:
    seconds = flops / rate
    return {
        "median_seconds": seconds,
        "min_seconds": 0.99 * seconds,
        "max_seconds": 1.01 * seconds,
        "gflops": rate / 1e9,
        "calls_per_sample": 1,
        "seconds": [0.99 * seconds, seconds, 1.01 * seconds],
        "relative_error": 1e-3,
        "right": True,
        "peak_bytes": int(peak),
    }


def _peaks(batch: int, heads: int, seqlen: int, dim: int) -> dict[str, float]:
    rows = batch * heads * seqlen
    linear = rows * dim * 2
    return {
        "onchip": 7 * linear,
        "torch-flash": 7 * linear + 4 * rows,
        "torch-cudnn": 8 * linear,
        "unfused": 8 * rows * seqlen,
    }


def hopper_document(
    score: float = 1.1, safe: float = 1.0, dtypes: Sequence[str] = ("bfloat16",)
) -> dict[str, Any]:
    """The same from kernels for Hopper, which have one score in all forward cells."""
    document = whole_document(dtypes)
    document["providers"][hopper.SAFE] = {"version": "1.0"}
    for cell in document["cells"]:
        if cell["direction"] == "forward":
            place = hopper.Place(cell["dim"], cell["causal"], cell["seqlen"])
            cell["plan"]["kernels"] = [f"sm90_fwd_{cell['dtype']}_d{cell['dim']}"]
            results = cell["results"]
            peak = results["onchip"]["peak_bytes"]
            for name, times in (("onchip", score), (hopper.SAFE, safe)):
                rate = RATES["torch-cudnn"] * times * hopper.BEST_OVER_CUDNN[place]
                results[name] = _result(cell["flops"], rate, peak)
    return document


def whole_document(dtypes: Sequence[str] = ("bfloat16",)) -> dict[str, Any]:
    """The whole grid, with every bar cleared."""
    cells = []
    memory = []
    for cell in grid(dtypes=dtypes):
        peaks = _peaks(cell.batch, cell.heads, cell.seqlen, cell.dim)
        record = cell.as_dict()
        moved = {"bytes": cell.flops / 500, "unfused_bytes": cell.flops / 20}
        cells.append(
            {
                **record,
                "flops": cell.flops,
                "plan": {"kernels": [f"k_{cell.direction}_d{cell.dim}"], "workspace_bytes": 0}
                | moved,
                "results": {
                    name: _result(cell.flops, rate, peaks[name]) for name, rate in RATES.items()
                },
                "skipped": {},
                "took_seconds": 0.5,
            }
        )
        if cell.direction == "both" and not cell.causal:
            peak = {x: int(y / cell.batch) for x, y in peaks.items()}
            memory.append({**record, "batch": 1, "peak_bytes": peak})
    kernel = {"name": "void ns::(anonymous namespace)::fused<1, 2>(int)", "microseconds": 100.0}
    return {
        "benchmark": "cuda",
        "driver": "580.0",
        "cuda": "13.0",
        "date": "2026-01-01T00:00:00+00:00",
        "commit": "0123456",
        "rounds": 7,
        "device": DEVICE,
        "providers": {name: {"version": "1.0"} for name in RATES} | {"x": {"unavailable": "no x"}},
        "cells": cells,
        "memory": memory,
        "kernels": [{**cells[0], "provider": "onchip", "kernels": [kernel]}],
    }
