# SPDX-License-Identifier: Apache-2.0
"""The caller's current CUDA stream, which is both the DLPack handshake's and the launch's.

DLPack writes the legacy default stream as 1 (0 is ambiguous) and means memory without streams by
None. CUDA takes the same 1 as a stream handle, so one number serves both.
"""

from __future__ import annotations

import sys
from typing import Any

LEGACY = 1


def torch_stream(x: Any) -> int | None:
    """PyTorch's current stream on the device of `x`; None in host memory."""
    if not x.is_cuda:
        return None
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
