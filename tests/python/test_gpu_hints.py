# SPDX-License-Identifier: Apache-2.0
"""Lengths on a GPU stay there: wrong hints change the plan, never the result."""

from __future__ import annotations

from typing import Any

import pytest

import onchip
from kinds import need_gpu
from onchip import _core
from onchip._arrays import Operands
from onchip._steps import PACKED, forward, read_lengths, read_qkv, read_score_terms, set_options

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
torch = pytest.importorskip("torch")

LENGTHS_Q = (130, 1, 0, 300, 17)
LENGTHS_K = (700, 64, 33, 129, 0)
HINTS = [1, 20, 100, 699, 700, 5000]


@pytest.fixture(autouse=True, scope="module")
def _device() -> None:
    need_gpu()


def starts(lengths: tuple[int, ...]) -> Any:
    return torch.tensor((0, *lengths), device="cuda").cumsum(0).to(torch.int32)


def problem(dtype: str, dim: int = 64) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
    generator = torch.Generator("cuda").manual_seed(1)

    def rows(lengths: tuple[int, ...], heads: int) -> Any:
        shape = (sum(lengths), heads, dim)
        x = torch.randn(shape, generator=generator, device="cuda")
        return x.to(getattr(torch, dtype))

    qkv = rows(LENGTHS_Q, 4), rows(LENGTHS_K, 2), rows(LENGTHS_K, 2)
    return qkv, {"cu_seqlens_q": starts(LENGTHS_Q), "cu_seqlens_k": starts(LENGTHS_K)}


@pytest.mark.parametrize("hint", HINTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_hints_change_no_bit(dtype: str, hint: int) -> None:
    """But those of Hopper's kernels: heads share a tile where sequences are said to be shorter."""
    (q, k, v), lengths = problem(dtype)
    family = onchip.device_info("cuda").family
    shares = dtype != "float32" and family == 90 and hint < 192
    dout = torch.ones_like(q)

    def run(**hints: Any) -> tuple[Any, ...]:
        out, lse = onchip.attention_varlen(
            q, k, v, **lengths, **hints, causal=True, return_lse=True
        )
        gradients = onchip.attention_varlen_backward(
            dout, q, k, v, out, lse, **lengths, **hints, causal=True, deterministic=True
        )
        return out, lse, *gradients

    for got, want in zip(run(max_seqlen_q=hint, max_seqlen_k=hint), run(), strict=True):
        if shares:
            torch.testing.assert_close(got, want, atol=5e-2, rtol=2e-2)
        else:
            assert torch.equal(got, want)


def split_varlen(
    qkv: tuple[Any, Any, Any], lengths: dict[str, Any], options: dict[str, Any]
) -> tuple[Any, Any]:
    """attention_varlen with the options of split-KV, which only C and C++ give packed sequences."""
    call = _core.Call(False)
    set_options(call, None, options.pop("causal", False), (-1, -1), 0.0, 0.0, None, 0, **options)
    operands = Operands(call, "q", qkv[0])
    views = read_qkv(operands, *qkv, PACKED)
    read_lengths(operands, lengths["cu_seqlens_q"], lengths["cu_seqlens_k"], None, None)
    read_score_terms(operands, None, None, None)
    out, lse = forward(operands, views, None, True)
    return out, lse


@pytest.mark.parametrize("hint", HINTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("split", [{"num_splits": 4}, {"num_splits": 0}, {"split_size": 40}])
def test_the_last_split_takes_what_the_hint_left_out(
    split: dict[str, int], dtype: str, causal: bool, hint: int
) -> None:
    qkv, lengths = problem(dtype)
    want, want_lse = onchip.attention_varlen(*qkv, **lengths, causal=causal, return_lse=True)
    out, lse = split_varlen(qkv, lengths, {**split, "max_seqlen_k": hint, "causal": causal})
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    torch.testing.assert_close(out, want, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse, want_lse, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_bias_shorter_than_a_sequence_ends_there(dtype: str) -> None:
    (q, k, v), lengths = problem(dtype)
    full = torch.zeros((1, 4, max(LENGTHS_Q), max(LENGTHS_K)), device="cuda", dtype=q.dtype)
    full[:, :, :70, :100] = torch.linspace(-3, 3, 100, device="cuda", dtype=q.dtype)
    short = full[:, :, :70, :100].contiguous()
    dout = torch.ones_like(q)

    def run(bias: Any) -> tuple[Any, ...]:
        out, lse = onchip.attention_varlen(q, k, v, **lengths, bias=bias, return_lse=True)
        gradients = onchip.attention_varlen_backward(
            dout, q, k, v, out, lse, **lengths, bias=bias, deterministic=True
        )
        return out, lse, *gradients

    *got, short_dbias = run(short)
    *want, full_dbias = run(full)
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x, y)
    torch.testing.assert_close(short_dbias, full_dbias[:, :, :70, :100], atol=1e-3, rtol=1e-2)
