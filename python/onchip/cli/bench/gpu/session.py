# SPDX-License-Identifier: Apache-2.0
"""How a cell is measured on a GPU, in the measuring process."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import onchip
from onchip.cli._console import format_bytes
from onchip.cli.bench.cells import Cell, Tensors
from onchip.cli.bench.contender import TOLERANCES, Clock, Contender, take_turns
from onchip.cli.bench.gpu.providers import PROVIDERS, GpuProvider
from onchip.cli.bench.gpu.providers.base import new_threads_expected
from onchip.cli.bench.gpu.tensors import expected_results, make_tensors, relative_error
from onchip.cli.bench.provider import UnavailableError
from onchip.cli.bench.worker import Spec

# What a provider may raise where it cannot compute a cell; out of memory is a RuntimeError.
REFUSALS = (UnavailableError, NotImplementedError, RuntimeError, ValueError)


class Meter(Protocol):
    """The instruments of a device; see `CudaMeter`."""

    device: str

    def facts(self) -> dict[str, Any]: ...
    def clock(self, direction: str) -> Clock: ...
    def share_bytes(self) -> int: ...
    def held_bytes(self) -> int: ...
    def peak_bytes(self, call: Callable[[], Any]) -> int | None: ...
    def kernels(self, call: Callable[[], Any]) -> list[dict[str, Any]]: ...


def reason_of(error: Exception) -> str:
    text = str(error).strip().splitlines()
    if type(error).__name__ == "OutOfMemoryError":
        return "does not fit in memory"
    return text[0] if text else type(error).__name__


def planned(cell: Cell, device: str) -> dict[str, Any]:
    """The kernels that onchip takes, and the traffic that its cost model predicts."""
    shape = (cell.batch, cell.seqlen, cell.heads, cell.dim)
    backwards = {"forward": (False,), "backward": (True,), "both": (False, True)}[cell.direction]
    plans = [
        onchip.plan(
            shape,
            shape,
            dtype=cell.dtype,
            device=device,
            causal=cell.causal,
            backward=backward,
            return_lse=cell.direction != "forward",
        )
        for backward in backwards
    ]
    return {
        "kernels": [plan.kernel for plan in plans],
        "workspace_bytes": max(plan.workspace_bytes for plan in plans),
        "bytes": sum(plan.cost.bytes_read + plan.cost.bytes_written for plan in plans),
        "unfused_bytes": sum(
            plan.standard.bytes_read + plan.standard.bytes_written for plan in plans
        ),
    }


class GpuSession:
    def __init__(self, spec: Spec, meter: Meter) -> None:
        self._spec = spec
        self._meter = meter
        self._providers: dict[str, GpuProvider] = {}
        self._facts: dict[str, dict[str, str]] = {}
        for name in spec.providers:
            try:
                self._providers[name] = PROVIDERS[name](meter.device)
                self._facts[name] = self._providers[name].facts()
            except UnavailableError as error:
                self._facts[name] = {"unavailable": str(error)}

    def facts(self) -> dict[str, Any]:
        return {"providers": self._facts, "device": self._meter.facts()}

    @new_threads_expected()
    def measure(self, cell: Cell) -> dict[str, Any]:
        spec, meter = self._spec, self._meter
        started = time.perf_counter()
        tensors = make_tensors(cell, meter.device)
        expected = expected_results(cell, tensors)
        contenders: dict[str, Contender] = {}
        results: dict[str, dict[str, Any]] = {}
        skipped: dict[str, str] = {}
        for name, provider in self._providers.items():
            try:
                contenders[name], results[name] = self._enter(provider, cell, tensors, expected)
            except REFUSALS as refusal:
                skipped[name] = reason_of(refusal)
        del expected
        take_turns(
            list(contenders.values()), spec.rounds, spec.min_rounds, started + spec.cell_seconds
        )
        return {
            **cell.as_dict(),
            "flops": cell.flops,
            "plan": planned(cell, meter.device),
            "results": {
                name: contender.record() | results[name] for name, contender in contenders.items()
            },
            "skipped": skipped,
            "took_seconds": time.perf_counter() - started,
        }

    def _enter(
        self, provider: GpuProvider, cell: Cell, tensors: Tensors, expected: list[Any]
    ) -> tuple[Contender, dict[str, Any]]:
        """The provider's call, checked, weighed and warmed up."""
        meter = self._meter
        before = meter.held_bytes()
        call = provider.prepare(cell, tensors)
        error = relative_error(call(), expected)
        peak = meter.peak_bytes(call)
        taken = meter.held_bytes() - before + (peak or 0)
        if taken > meter.share_bytes():
            raise UnavailableError(f"takes {format_bytes(taken)}: no room beside the others")
        contender = Contender(call, meter.clock(cell.direction), cell.flops)
        contender.warm_up(self._spec.sample_seconds)
        right = error <= TOLERANCES[cell.dtype]
        return contender, {"relative_error": error, "right": right, "peak_bytes": peak}

    @new_threads_expected()
    def extras(self) -> dict[str, Any]:
        """After the timing, which the profiler would disturb."""
        return {"memory": self._memory(), "kernels": self._kernels()}

    def _memory(self) -> list[dict[str, Any]]:
        """Of forward and backward, one sequence, in every length and head dimension."""
        cells = self._spec.cells
        wanted = dict.fromkeys(
            replace(cell, batch=1) for cell in cells if cell.direction == "both" and not cell.causal
        )
        records = []
        for cell in wanted:
            calls = self._prepared(cell)
            peaks = {name: self._meter.peak_bytes(call) for name, call in calls.items()}
            records.append({**cell.as_dict(), "peak_bytes": peaks})
        return records

    def _kernels(self) -> list[dict[str, Any]]:
        """What ran, in the longest cell of each dtype, head dimension and single pass."""
        longest: dict[tuple[str, str, int], Cell] = {}
        for cell in self._spec.cells:
            if cell.direction != "both" and not cell.causal:
                longest[cell.dtype, cell.direction, cell.dim] = cell
        return [
            {**cell.as_dict(), "provider": name, "kernels": self._meter.kernels(call)}
            for cell in longest.values()
            for name, call in self._prepared(cell).items()
        ]

    def _prepared(self, cell: Cell) -> dict[str, Callable[[], Any]]:
        """The calls of those who can compute the cell, each made once."""
        tensors = make_tensors(cell, self._meter.device)
        calls = {}
        for name, provider in self._providers.items():
            try:
                call = provider.prepare(cell, tensors)
                call()
            except REFUSALS:
                continue
            calls[name] = call
        return calls
