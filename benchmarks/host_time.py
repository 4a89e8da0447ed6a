#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time of one call on the host, through Python and through C++, with PyTorch's tensors.

On a GPU calls are queued, a few hundred at a time, and nothing is waited for while the clock runs.
On a CPU the C++ figure includes the computation, which is small at this shape.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

import onchip
from onchip import _core
from onchip._arrays import Operands
from onchip._steps import DENSE, read_qkv, set_options

CALLS, ROUNDS = 200, 15


def microseconds(call: Callable[[], Any], cuda: bool) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - start)
        if cuda:
            torch.cuda.synchronize()
    return best / CALLS * 1e6


def main() -> None:
    cuda = torch.cuda.is_available() and torch.cuda.device_count() > 0
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    onchip.set_num_threads(1)
    rows = 64 if cuda else 1
    q, k, v = torch.randn((3, 1, rows, 1, 64), device=device).to(dtype).unbind()
    out, lse = onchip.attention(q, k, v, return_lse=True)

    call = _core.Call(False)
    set_options(call, None, True, (-1, -1), 0.0, 0.0, None, 0)
    operands = Operands(call, "q", q)
    read_qkv(operands, q, k, v, DENSE)
    operands.write("out", out)
    operands.run()
    size = call.prepare()
    workspace = operands.allocate("workspace", (size,), "uint8")[1] if size else None
    stream = operands.stream or 0

    calls: dict[str, Callable[[], Any]] = {
        "C++, forward": lambda: call.run(workspace, stream),
        "Python, attention(causal=True)": lambda: onchip.attention(q, k, v, causal=True),
        "Python, attention(causal=True, out=...)": lambda: onchip.attention(
            q, k, v, causal=True, out=out
        ),
        "Python, attention_backward": lambda: onchip.attention_backward(out, q, k, v, out, lse),
    }
    for name, function in calls.items():
        function()
        print(f"{name:42} {microseconds(function, cuda):6.2f} us")


if __name__ == "__main__":
    main()
