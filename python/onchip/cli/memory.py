# SPDX-License-Identifier: Apache-2.0
"""Memory beyond the inputs: what a plan and its outputs take, and what the process really took."""

import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import onchip

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Memory:
    """Bytes of one forward and one backward pass."""

    workspace_bytes: int  # the larger of the two: they do not run at once
    output_bytes: int  # out, lse, dq, dk, dv
    score_bytes: int  # one N x N float32 matrix of every head
    share: float  # (workspace + outputs) / scores


def planned_memory(
    q_shape: tuple[int, ...], k_shape: tuple[int, ...], dtype: str, **options: Any
) -> Memory:
    """Of (B, S, H, D) and (B, S, Hkv, D); `options` are those of `onchip.plan`."""
    workspace = max(
        onchip.plan(
            q_shape, k_shape, dtype=dtype, backward=backward, return_lse=True, **options
        ).workspace_bytes
        for backward in (False, True)
    )
    size = 2 if dtype in ("float16", "bfloat16") else np.dtype(dtype).itemsize
    stats = 8 if dtype == "float64" else 4
    queries, keys = math.prod(q_shape) * size, math.prod(k_shape) * size
    batch, seqlen, heads, _ = q_shape
    outputs = 2 * queries + 2 * keys + batch * heads * seqlen * stats
    scores = 4 * batch * heads * seqlen * k_shape[1]
    return Memory(workspace, outputs, scores, (workspace + outputs) / scores)


LONG_SEQLEN = 32768
LONG_DIM = 64


def long_sequence_memory(dtype: str = "float32", **options: Any) -> Memory:
    """The memory bar's shape: one head, s = 32768, d = 64; on the CPU in float32."""
    shape = (1, LONG_SEQLEN, 1, LONG_DIM)
    return planned_memory(shape, shape, dtype, **options)


def _resident_bytes() -> int | None:
    if not _STATUS.is_file():
        return None
    found = re.search(r"VmRSS:\s+(\d+) kB", _STATUS.read_text())
    return int(found.group(1)) * 1024 if found else None


def peak_growth(call: Callable[[], Any]) -> tuple[Any, int | None]:
    """Runs `call`; returns its result and by how much the process grew at the most.

    Samples the resident set every millisecond from another thread: the kernel's own high-water
    mark cannot be set back everywhere. None where the system does not say.
    """
    before = _resident_bytes()
    if before is None:
        return call(), None
    peak = before
    stop = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.is_set():
            peak = max(peak, _resident_bytes() or 0)
            time.sleep(1e-3)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = call()
    finally:
        stop.set()
        watcher.join()
    return result, max(peak, _resident_bytes() or 0) - before
