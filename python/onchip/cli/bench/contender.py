# SPDX-License-Identifier: Apache-2.0
"""Timing, the same for every device: warm up, then turn about, medians of samples."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

MAX_CALLS = 128  # of one sample
# Largest error, as a part of the largest value, that still counts as the same result.
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


class Clock(Protocol):
    def sampler(self, call: Callable[[], Any], calls: int) -> Callable[[], float]:
        """What runs `call` so many times and returns the seconds of all."""
        ...


class Contender:
    """One provider's part in a cell: its timed call, and the samples so far."""

    def __init__(self, call: Callable[[], Any], clock: Clock, flops: float):
        self._call = call
        self._clock = clock
        self._flops = flops
        self._calls = 1
        self._sampler = clock.sampler(call, 1)
        self._samples: list[float] = []

    def warm_up(self, sample_seconds: float) -> None:
        """Settles how many calls make a sample."""
        took = self._sampler()
        self._calls = min(MAX_CALLS, max(1, math.ceil(sample_seconds / max(took, 1e-9))))
        if self._calls > 1:
            self._sampler = self._clock.sampler(self._call, self._calls)

    def sample(self) -> None:
        self._samples.append(self._sampler() / self._calls)

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


def take_turns(contenders: Sequence[Contender], rounds: int, enough: int, until: float) -> None:
    """A sample of each in every round. No new round after `until`, once there were `enough`."""
    for turn in range(rounds if contenders else 0):
        if turn >= enough and time.perf_counter() > until:
            break
        first = turn % len(contenders)  # nobody always follows the same neighbour
        for contender in (*contenders[first:], *contenders[:first]):
            contender.sample()
