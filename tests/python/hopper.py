# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Hopper kernels share: where they run, and problems that they compute."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import library
import onchip
from casefile import Array, Case
from comparison import expect_right
from kinds import Kind, need_gpu
from on_gpu import torch
from problems import eighths

KINDS = ("torch-cuda-bfloat16", "torch-cuda-float16")

# (D, Dv) of each row of the tile table.
WIDTHS = ((64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256))

SECONDS = 60  # that no test comes near


def need_hopper() -> None:
    """Skips, with the reason, where the library would not launch the Hopper kernels."""
    need_gpu()
    device = onchip.device_info("cuda")
    if device.family < 90:
        pytest.skip(f"{device.name} runs the kernels of sm{device.family}")


def planned(case: Case, dtype: str, **how: Any) -> Any:
    """The plan of a case's forward pass on this machine's GPU."""
    given = {n: case.options[n] for n in ("causal", "window", "softcap") if n in case.options}
    q, k, v = case.qkv
    return onchip.plan(
        q.shape, k.shape, v.shape, dtype=dtype, device="cuda", alibi="alibi_slopes" in case.inputs,
        sinks="sinks" in case.inputs,
        batch=len(case.inputs["cu_seqlens_q"]) - 1 if case.op == "varlen" else None,
        **given, **how,
    )  # fmt: skip


def results(case: Case, kind: Kind, **how: Any) -> dict[str, Array]:
    """out and lse; `how` are options that must not change what is computed."""
    got = library.results(dataclasses.replace(case, options={**case.options, **how}), kind)
    ends()
    return got


class _Once(Case):
    """Remembers its right answers."""

    def reference(self, precision: str = "float64", grid: float = 1.0) -> dict[str, Array]:
        known: dict[tuple[str, float], dict[str, Array]] = vars(self).setdefault("_known", {})
        if (precision, grid) not in known:
            known[precision, grid] = super().reference(precision, grid)
        return known[precision, grid]


def expect_case(case: Case, kind: Kind) -> dict[str, Array]:
    """Checks both kinds of softmax; returns what came without saying which."""
    once = _Once(**{field.name: getattr(case, field.name) for field in dataclasses.fields(case)})
    for softmax in ("safe", "auto"):
        got = results(case, kind, softmax=softmax)
        expect_right(once, got, kind.dtype)
    return got


def ends() -> None:
    """Stops the whole run where a kernel does not end: nothing on this device would."""
    done = torch().cuda.Event()
    done.record()
    limit = time.monotonic() + SECONDS
    while not done.query():
        if time.monotonic() > limit:
            pytest.exit(f"a kernel still runs after {SECONDS} s", returncode=3)


def dense(
    rng: np.random.Generator,
    rows: int,
    keys: int,
    width: tuple[int, int] = (128, 128),
    heads: tuple[int, int] = (4, 2),
    batch: int = 1,
    **options: Any,
) -> Case:
    inputs = {
        "q": eighths(rng, batch, rows, heads[0], width[0]),
        "k": eighths(rng, batch, keys, heads[1], width[0]),
        "v": eighths(rng, batch, keys, heads[1], width[1]),
    }
    return Case("hopper", "dense", inputs, options, {}, 0.0)


def packed(
    rng: np.random.Generator,
    lengths: Sequence[tuple[int, int]],
    width: tuple[int, int] = (128, 128),
    heads: tuple[int, int] = (4, 2),
    used: Sequence[tuple[int, int]] | None = None,
    **options: Any,
) -> Case:
    """Sequences of (rows, keys), NaN in every token that does not count and in three at the end."""
    rows, keys = (np.array([n[side] for n in lengths]) for side in (0, 1))
    starts = [np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in (rows, keys)]
    inputs = {
        "q": eighths(rng, int(starts[0][-1]) + 3, heads[0], width[0]),
        "k": eighths(rng, int(starts[1][-1]) + 3, heads[1], width[0]),
        "v": eighths(rng, int(starts[1][-1]) + 3, heads[1], width[1]),
        "cu_seqlens_q": starts[0],
        "cu_seqlens_k": starts[1],
    }
    counts = [rows, keys]
    if used is not None:
        counts = [np.array([n[side] for n in used], np.int32) for side in (0, 1)]
        inputs |= {"seqused_q": counts[0], "seqused_k": counts[1]}
    for side, names in ((0, "q"), (1, "kv")):
        unread = np.ones(int(starts[side][-1]) + 3, bool)
        for start, count in zip(starts[side][:-1], counts[side], strict=True):
            unread[start : start + count] = False
        for name in names:
            inputs[name][unread] = np.nan
    return Case("hopper", "varlen", inputs, options, {}, 0.0)
