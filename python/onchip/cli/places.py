# SPDX-License-Identifier: Apache-2.0
"""Where `onchip demo` computes: how arrays get there and back, and what times and weighs a call."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

import onchip
from onchip.cli import memory, unfused

Array = unfused.Array
Call = Callable[[], Any]


class Cost(NamedTuple):
    forward_seconds: float
    backward_seconds: float
    peak_bytes: int | None  # of forward and backward, beyond the inputs


class Place(Protocol):
    device: str  # as `onchip.plan` takes it
    peer: str  # who computes unfused
    dtype: str  # what is shown where none is asked for

    @property
    def label(self) -> str: ...
    def put(self, x: Array) -> Any: ...
    def back(self, x: Any) -> Array: ...
    def seconds(self, call: Call, repeats: int) -> float: ...
    def weigh(self, call: Call) -> tuple[Any, int | None]: ...
    def unfused(self, dout: Array, q: Array, k: Array, v: Array) -> Cost | None:
        """Of the unfused computation there; None where that is the one in NumPy."""
        ...


class HostPlace:
    """NumPy arrays."""

    device = "cpu"
    peer = "NumPy"
    dtype = "float32"

    @property
    def label(self) -> str:
        return f"{onchip.cpu_isa()}, {onchip.num_threads()} threads"

    def put(self, x: Array) -> Array:
        return x

    def back(self, x: Array) -> Array:
        return x

    def seconds(self, call: Call, repeats: int) -> float:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def weigh(self, call: Call) -> tuple[Any, int | None]:
        return memory.peak_growth(call)

    def unfused(self, dout: Array, q: Array, k: Array, v: Array) -> Cost | None:
        return None


class TorchPlace:
    """torch tensors on the current GPU."""

    device = "cuda"
    peer = "torch on the GPU"
    dtype = "float16"

    def __init__(self) -> None:
        import torch

        from onchip.cli.bench.gpu.meter import CudaMeter
        from onchip.cli.bench.gpu.providers.base import new_threads_expected
        from onchip.cli.bench.gpu.providers.unfused import unfused_attention

        self._torch: Any = torch
        self._unfused = unfused_attention
        self._new_threads_expected = new_threads_expected
        self._meter = CudaMeter()

    @property
    def label(self) -> str:
        return onchip.device_info(self.device).name

    def put(self, x: Array) -> Any:
        if x.dtype.name == "bfloat16":  # torch does not know ml_dtypes' type
            return self._torch.from_numpy(x.view(np.uint16)).view(self._torch.bfloat16).cuda()
        return self._torch.from_numpy(x).cuda()

    def back(self, x: Any) -> Array:
        array: Array = x.float().cpu().numpy()
        return array

    def seconds(self, call: Call, repeats: int) -> float:
        sample = self._meter.clock("backward").sampler(call, 1)
        return statistics.median(sample() for _ in range(repeats))

    def weigh(self, call: Call) -> tuple[Any, int | None]:
        return call(), self._meter.peak_bytes(call)

    def unfused(self, dout: Array, q: Array, k: Array, v: Array) -> Cost | None:
        tq, tk, tv = inputs = [self.put(x).requires_grad_() for x in (q, k, v)]
        gradient = self.put(dout)

        def forward() -> Any:
            return self._unfused(tq, tk, tv, causal=True)

        def backward(out: Any) -> Any:
            return self._torch.autograd.grad(out, inputs, gradient, retain_graph=True)

        with self._new_threads_expected():
            _, peak = self.weigh(lambda: backward(forward()))
            out = forward()
            return Cost(self.seconds(forward, 3), self.seconds(lambda: backward(out), 3), peak)
