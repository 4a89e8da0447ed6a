# SPDX-License-Identifier: Apache-2.0
"""The host side on a GPU: streams asked for, memory taken, plans for devices by name."""

from __future__ import annotations

import pytest

import onchip
from kinds import need_gpu
from onchip import _core, _stream
from onchip._arrays import Operands
from onchip._steps import DENSE, read_qkv, set_options

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="module")
def _device() -> None:
    need_gpu()


def test_the_exchange_api_tells_the_current_stream() -> None:
    x = torch.zeros(1, device="cuda")
    exchange = getattr(type(x), "__dlpack_c_exchange_api__", None)
    if exchange is None:
        pytest.skip("this PyTorch has no C exchange API")
    side = torch.cuda.Stream()
    assert _stream.torch_stream(x, exchange) == _stream.torch_stream(x, None) == _stream.LEGACY
    with torch.cuda.stream(side):
        assert _stream.torch_stream(x, exchange) == side.cuda_stream


def test_a_plan_for_the_device_by_name_is_the_one_that_runs() -> None:
    capability = onchip.device_info("cuda").compute_capability
    named = map(onchip.device_info, onchip.devices())
    alike = [x.name for x in named if x.type == "cuda" and x.compute_capability == capability]
    if not alike:
        pytest.skip(f"no named device has compute capability {capability}")
    for name in alike:
        shape = (2, 1000, 8, 128)
        plan = onchip.plan(shape, shape, device=name, causal=True)
        q = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        call = _core.Call(False)
        set_options(call, None, True, (-1, -1), 0.0, 0.0, None, 0)
        operands = Operands(call, "q", q)
        read_qkv(operands, q, q, q, DENSE)
        operands.write("out", torch.empty_like(q))
        assert call.plan().kernel == plan.kernel


def test_backward_needs_no_more_memory_than_the_sums_of_dq() -> None:
    q = torch.randn((1, 4096, 8, 64), device="cuda", dtype=torch.bfloat16)
    out, lse = onchip.attention(q, q, q, return_lse=True)
    onchip.attention_backward(out, q, q, q, out, lse)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gradients = onchip.attention_backward(out, q, q, q, out, lse)
    peak = torch.cuda.max_memory_allocated() - before
    results = sum(x.numel() * x.element_size() for x in gradients)
    assert peak - results <= q.numel() * 4 + 1024
