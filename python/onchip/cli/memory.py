# SPDX-License-Identifier: Apache-2.0
"""Memory beyond the inputs: what a plan and its outputs take, and what the process really took."""

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
    *, batch: int, seqlen: int, heads: int, heads_kv: int, dim: int, dtype: str, **options: Any
) -> Memory:
    q_shape, k_shape = (batch, seqlen, heads, dim), (batch, seqlen, heads_kv, dim)
    workspace = max(
        onchip.plan(
            q_shape, k_shape, dtype=dtype, backward=backward, return_lse=True, **options
        ).workspace_bytes
        for backward in (False, True)
    )
    size = 2 if dtype in ("float16", "bfloat16") else np.dtype(dtype).itemsize
    stats = 8 if dtype == "float64" else 4
    rows = batch * seqlen
    queries, keys = rows * heads * dim * size, rows * heads_kv * dim * size
    outputs = 2 * queries + 2 * keys + rows * heads * stats
    scores = 4 * batch * heads * seqlen**2
    return Memory(workspace, outputs, scores, (workspace + outputs) / scores)


LONG_SEQLEN = 32768
LONG_DIM = 64


def long_sequence_memory(**options: Any) -> Memory:
    """The memory bar's shape: one head, s = 32768, d = 64, float32."""
    return planned_memory(
        batch=1, seqlen=LONG_SEQLEN, heads=1, heads_kv=1, dim=LONG_DIM, dtype="float32", **options
    )


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
