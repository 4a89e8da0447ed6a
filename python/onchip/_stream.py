# SPDX-License-Identifier: Apache-2.0
"""The caller's current CUDA stream, which is both the DLPack handshake's and the launch's.

DLPack writes the legacy default stream as 1 (0 is ambiguous) and means memory without streams by
None. CUDA takes the same 1 as a stream handle, so one number serves both.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

from onchip import _core

LEGACY = 1


def torch_stream(x: Any, exchange: Any) -> int | None:
    """PyTorch's current stream on the device of `x`; None in host memory. `exchange`: DLPack's C
    exchange API of the type of `x`, which tells it ten times quicker, or None."""
    if not x.is_cuda:
        return None
    if exchange is not None:
        return _core.current_stream(x, exchange) or LEGACY
    handle: int = sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
    return handle or LEGACY


def cupy_stream(x: Any) -> int | None:
    """CuPy's current stream on the device of `x`."""
    with x.device:
        handle: int = sys.modules["cupy"].cuda.get_current_stream().ptr
    return handle or LEGACY


def dlpack_stream(x: Any) -> int | None:
    """For arrays of libraries whose current stream is not known: the legacy default one."""
    return LEGACY if int(x.__dlpack_device__()[0]) == 2 else None


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _drive(name: str, *arguments: Any) -> None:
    status = getattr(_driver(), name)(*arguments)
    if status != 0:
        raise RuntimeError(f"device: {name} returned CUDA error {status}")


def wait_for(stream: int, waiting: int) -> None:
    """What is queued on `waiting` from now on runs after what is on `stream` now; no host waits."""
    if stream == waiting:
        return
    no_timing = 2
    context, event = ctypes.c_void_p(), ctypes.c_void_p()
    _drive("cuStreamGetCtx", ctypes.c_void_p(stream), ctypes.byref(context))
    _drive("cuCtxPushCurrent_v2", context)
    try:
        _drive("cuEventCreate", ctypes.byref(event), no_timing)
        _drive("cuEventRecord", event, ctypes.c_void_p(stream))
        _drive("cuStreamWaitEvent", ctypes.c_void_p(waiting), event, 0)
    finally:
        if event:
            _drive("cuEventDestroy_v2", event)
        _drive("cuCtxPopCurrent_v2", ctypes.byref(context))
