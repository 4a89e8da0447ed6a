# SPDX-License-Identifier: Apache-2.0
"""The measuring process: reads a `Spec` as JSON on stdin, writes one JSON event a line on stdout.

A process of its own, because instruction sets and thread counts are settled when NumPy, torch and
onchip are imported. It does nothing but measure.
"""

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import numpy as np

from onchip.cli.bench.cells import Array, Cell, make_tensors
from onchip.cli.bench.providers import PROVIDERS, Provider, UnavailableError

SETTLE_SECONDS = 0.03  # lets the last provider's spinning threads go to sleep

# Largest error, as a part of the largest value, that still counts as the same result.
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Spec:
    cells: list[Cell]
    providers: list[str]
    threads: int
    rounds: int  # turns each provider gets
    min_rounds: int  # turns it gets however slow a cell is
    cell_seconds: float  # no new round after this
    sample_seconds: float  # a sample is as many calls as take this long
    gemm_size: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Spec":
        fields = json.loads(text)
        return Spec(**fields | {"cells": [Cell(**cell) for cell in fields["cells"]]})


class Contender:
    """One provider's part in a cell: its timed call, and the samples so far."""

    def __init__(self, call: Callable[[], Any], synchronise: Callable[[], None], flops: float):
        self._call = call
        self._synchronise = synchronise
        self._flops = flops
        self._calls = 1
        self._samples: list[float] = []

    def warm_up(self, sample_seconds: float) -> Any:
        """Returns a result, and settles how many calls make a sample."""
        result = self._call()
        self._synchronise()
        took = self._time(1)
        self._calls = max(1, math.ceil(sample_seconds / max(took, 1e-9)))
        return result

    def sample(self) -> None:
        time.sleep(SETTLE_SECONDS)
        self._samples.append(self._time(self._calls) / self._calls)

    def _time(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            self._call()
        self._synchronise()
        return time.perf_counter() - start

    def record(self) -> dict[str, Any]:
        median = statistics.median(self._samples)
        return {
            "median_seconds": median,
            "min_seconds": min(self._samples),
            "max_seconds": max(self._samples),
            "gflops": self._flops / median / 1e9,
            "calls_per_sample": self._calls,
            "seconds": self._samples,
        }


def gemm_contender(size: int) -> Contender:
    """NumPy's float32 matrix product: what this machine's own GEMM reaches."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((size, size), np.float32)
    b = rng.standard_normal((size, size), np.float32)
    c = np.empty_like(a)
    return Contender(lambda: np.matmul(a, b, out=c), lambda: None, 2.0 * size**3)


def relative_error(arrays: list[Array], expected: list[Array]) -> float:
    """Largest error over the largest value, of the worst of the results."""
    errors = [
        np.max(np.abs(x - y)) / max(float(np.max(np.abs(y))), 1e-30)
        for x, y in zip(arrays, expected, strict=True)
    ]
    return float(np.max(errors))  # NaN where any is, unlike max()


def measure(cell: Cell, providers: dict[str, Provider], spec: Spec) -> dict[str, Any]:
    start = time.perf_counter()
    tensors = make_tensors(cell)
    oracle = PROVIDERS["numpy"](spec.threads)
    expected = oracle.arrays(oracle.prepare(cell, tensors)())
    contenders: dict[str, Contender] = {}
    errors: dict[str, float] = {}
    skipped: dict[str, str] = {}
    for name, provider in providers.items():
        try:
            call = provider.prepare(cell, tensors)
        except (UnavailableError, NotImplementedError) as error:
            skipped[name] = str(error)
            continue
        contender = Contender(call, provider.synchronise, cell.flops)
        result = contender.warm_up(spec.sample_seconds)
        errors[name] = relative_error(provider.arrays(result), expected)
        contenders[name] = contender
    gemm = None
    turns = list(contenders.values())
    if cell.dtype == "float32" and not cell.causal:
        gemm = gemm_contender(spec.gemm_size)
        gemm.warm_up(spec.sample_seconds)
        turns.append(gemm)
    for turn in range(spec.rounds if turns else 0):
        if turn >= spec.min_rounds and time.perf_counter() - start > spec.cell_seconds:
            break
        first = turn % len(turns)  # nobody always follows the same neighbour
        for contender in turns[first:] + turns[:first]:
            contender.sample()
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


def run(spec: Spec, events: TextIO) -> None:
    def emit(event: str, **fields: Any) -> None:
        events.write(json.dumps({"event": event, **fields}) + "\n")
        events.flush()

    providers: dict[str, Provider] = {}
    facts: dict[str, dict[str, str]] = {}
    for name in spec.providers:
        try:
            providers[name] = PROVIDERS[name](spec.threads)
            facts[name] = providers[name].facts()
        except UnavailableError as error:
            facts[name] = {"unavailable": str(error)}
    emit("start", providers=facts)
    for cell in spec.cells:
        try:
            record = measure(cell, providers, spec)
        except ImportError as error:  # bfloat16 without ml_dtypes
            reason = str(error)
            record = {**cell.as_dict(), "results": {}, "skipped": {"all": reason}, "gemm": None}
        emit("cell", record=record)
    emit("end")


def main() -> None:
    # Whatever a library prints goes to stderr; only events go to the parent.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    run(Spec.from_json(sys.stdin.read()), events)


if __name__ == "__main__":
    main()
