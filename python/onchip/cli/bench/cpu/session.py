# SPDX-License-Identifier: Apache-2.0
"""How a cell is measured on the CPU, in the measuring process."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from onchip.cli.bench.cells import Cell
from onchip.cli.bench.contender import TOLERANCES, Contender, take_turns
from onchip.cli.bench.cpu.providers import PROVIDERS, CpuProvider
from onchip.cli.bench.cpu.tensors import make_tensors, relative_error
from onchip.cli.bench.provider import UnavailableError
from onchip.cli.bench.worker import Spec

SETTLE_SECONDS = 0.03  # lets the last provider's spinning threads go to sleep


class WallClock:
    """The time until the last call has returned."""

    def sampler(self, call: Callable[[], Any], calls: int) -> Callable[[], float]:
        def sample() -> float:
            time.sleep(SETTLE_SECONDS)
            start = time.perf_counter()
            for _ in range(calls):
                call()
            return time.perf_counter() - start

        return sample


def gemm_contender(size: int) -> Contender:
    """NumPy's float32 matrix product: what this machine's own GEMM reaches."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((size, size), np.float32)
    b = rng.standard_normal((size, size), np.float32)
    c = np.empty_like(a)
    return Contender(lambda: np.matmul(a, b, out=c), WallClock(), 2.0 * size**3)


class CpuSession:
    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._oracle = PROVIDERS["numpy"](spec.threads)
        self._providers: dict[str, CpuProvider] = {}
        self._facts: dict[str, dict[str, str]] = {}
        for name in spec.providers:
            try:
                self._providers[name] = PROVIDERS[name](spec.threads)
                self._facts[name] = self._providers[name].facts()
            except UnavailableError as error:
                self._facts[name] = {"unavailable": str(error)}

    def facts(self) -> dict[str, Any]:
        return {"providers": self._facts}

    def extras(self) -> dict[str, Any]:
        return {}

    def measure(self, cell: Cell) -> dict[str, Any]:
        try:
            return self._measure(cell)
        except ImportError as error:  # bfloat16 without ml_dtypes
            return {**cell.as_dict(), "results": {}, "skipped": {"all": str(error)}, "gemm": None}

    def _measure(self, cell: Cell) -> dict[str, Any]:
        spec = self._spec
        until = time.perf_counter() + spec.cell_seconds
        tensors = make_tensors(cell)
        expected = self._oracle.arrays(self._oracle.prepare(cell, tensors)())
        contenders: dict[str, Contender] = {}
        errors: dict[str, float] = {}
        skipped: dict[str, str] = {}
        for name, provider in self._providers.items():
            try:
                call = provider.prepare(cell, tensors)
            except (UnavailableError, NotImplementedError) as error:
                skipped[name] = str(error)
                continue
            errors[name] = relative_error(provider.arrays(call()), expected)
            contenders[name] = Contender(call, WallClock(), cell.flops)
        turns = list(contenders.values())
        gemm = None
        if cell.dtype == "float32" and not cell.causal:
            gemm = gemm_contender(spec.gemm_size)
            turns.append(gemm)
        for contender in turns:
            contender.warm_up(spec.sample_seconds)
        take_turns(turns, spec.rounds, spec.min_rounds, until)
        return {
            **cell.as_dict(),
            "flops": cell.flops,
            "results": {
                name: contender.record()
                | {
                    "relative_error": errors[name],
                    "right": errors[name] <= TOLERANCES[cell.dtype],
                }
                for name, contender in contenders.items()
            },
            "skipped": skipped,
            "gemm": gemm.record() if gemm else None,
        }
