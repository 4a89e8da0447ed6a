# SPDX-License-Identifier: Apache-2.0
"""The instruments of a GPU: events, graphs, the allocator's high-water mark, the profiler."""

from collections.abc import Callable
from typing import Any

import onchip
from onchip.cli.bench.contender import Clock
from onchip.cli.bench.provider import UnavailableError

MAX_SHARE = 0.3  # of the device's memory, for one provider


class EventClock:
    """Time between two events around the calls. A call goes ahead of them, under which the host
    queues the others: what counts is the GPU's time."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    def sampler(self, call: Callable[[], Any], calls: int) -> Callable[[], float]:
        def queue() -> None:
            for _ in range(calls):
                call()

        return self.between_events(call, queue)

    def between_events(
        self, lead: Callable[[], Any], queue: Callable[[], Any]
    ) -> Callable[[], float]:
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))

        def sample() -> float:
            lead()
            start.record()
            queue()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3

        return sample


class GraphClock:
    """The same around the replay of a graph of the calls. A single one, as long as a sample, needs
    no graph."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    def sampler(self, call: Callable[[], Any], calls: int) -> Callable[[], float]:
        if calls == 1:
            return EventClock(self._cuda).sampler(call, 1)
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph):
            for _ in range(calls):
                call()
        return EventClock(self._cuda).between_events(call, graph.replay)


class CudaMeter:
    """Of torch's current device."""

    device = "cuda"

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise UnavailableError(f"torch: {error}") from error
        if not torch.cuda.is_available():
            raise UnavailableError("torch: sees no GPU")
        self._torch: Any = torch

    def facts(self) -> dict[str, Any]:
        info = onchip.device_info(self.device)
        names = ("name", "compute_capability", "units", "on_chip_bytes", "l2_bytes",
                 "memory_bytes", "bandwidth", "flops_16bit")  # fmt: skip
        return {name: getattr(info, name) for name in names}

    def clock(self, direction: str) -> Clock:
        """The forward pass is replayed; autograd cannot be captured without more ado."""
        cuda = self._torch.cuda
        return GraphClock(cuda) if direction == "forward" else EventClock(cuda)

    def share_bytes(self) -> int:
        """What one provider may hold, so that those of a cell fit beside each other."""
        return int(MAX_SHARE * self._torch.cuda.get_device_properties(self.device).total_memory)

    def held_bytes(self) -> int:
        return int(self._torch.cuda.memory_allocated())

    def peak_bytes(self, call: Callable[[], Any]) -> int | None:
        """Device memory that one call takes at the most, its results included."""
        cuda = self._torch.cuda
        cuda.synchronize()
        cuda.empty_cache()
        before = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        result = call()
        cuda.synchronize()
        del result
        return int(cuda.max_memory_allocated() - before)

    def kernels(self, call: Callable[[], Any]) -> list[dict[str, Any]]:
        """What one call runs on the GPU, the longest first."""
        profiler = self._torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
            call()
            self._torch.cuda.synchronize()
        found = [
            {"name": event.key, "microseconds": event.self_device_time_total}
            for event in profile.key_averages()
            if event.self_device_time_total > 0
        ]
        return sorted(found, key=lambda kernel: -kernel["microseconds"])
