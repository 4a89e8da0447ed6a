# SPDX-License-Identifier: Apache-2.0
"""Small steps that the tests on a GPU share."""

from __future__ import annotations

from typing import Any

import pytest

import onchip


def torch() -> Any:
    return pytest.importorskip("torch")


def normal(*shape: int, seed: int = 0, dtype: str = "bfloat16") -> Any:
    generator = torch().Generator("cuda").manual_seed(seed)
    return torch().randn(shape, generator=generator, device="cuda", dtype=getattr(torch(), dtype))


def attend(q: Any, k: Any, v: Any, dout: Any, **options: Any) -> list[Any]:
    backward = {"deterministic": options.pop("deterministic", False)}
    out, lse = onchip.attention(q, k, v, **options, return_lse=True)
    return [out, lse, *onchip.attention_backward(dout, q, k, v, out, lse, **options, **backward)]


def reference(q: Any, k: Any, v: Any) -> Any:
    scores = torch().einsum("bihd,bjhd->bhij", q.double(), k.double()) / q.shape[-1] ** 0.5
    return torch().einsum("bhij,bjhd->bihd", scores.softmax(-1), v.double())


def expect_near(got: Any, expected: Any) -> None:
    assert (got.double() - expected).abs().max() < 2e-2


def strides_change_no_bit() -> bool:
    """Of forward: Hopper's kernels leave what TMA cannot follow to those of sm80."""
    return onchip.device_info("cuda").family < 90
