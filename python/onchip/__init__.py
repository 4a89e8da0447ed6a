# SPDX-License-Identifier: Apache-2.0
"""Exact attention that never writes the score matrix to memory, for arrays of any library.

>>> import numpy as np, onchip
>>> q = k = v = np.ones((1, 4, 2, 8), np.float32)
>>> onchip.attention(q, k, v, causal=True).shape
(1, 4, 2, 8)
"""

from onchip._call import (
    attention,
    attention_backward,
    attention_varlen,
    attention_varlen_backward,
    decode,
    dropout_mask,
    merge_states,
)
from onchip._core import (
    Buffer,
    Cost,
    DeviceInfo,
    IoBytes,
    IoModel,
    Plan,
    __version__,
    cpu_isa,
    device_info,
    num_threads,
)
from onchip._plan import devices, io_model, plan
from onchip._threads import set_num_threads

__all__ = [
    "Buffer",
    "Cost",
    "DeviceInfo",
    "IoBytes",
    "IoModel",
    "Plan",
    "__version__",
    "attention",
    "attention_backward",
    "attention_varlen",
    "attention_varlen_backward",
    "cpu_isa",
    "decode",
    "device_info",
    "devices",
    "dropout_mask",
    "io_model",
    "merge_states",
    "num_threads",
    "plan",
    "set_num_threads",
]
