# SPDX-License-Identifier: Apache-2.0
"""The FlashAttention papers' grid: as many tokens and as wide a model in every cell."""

import itertools
from collections.abc import Iterable

from onchip.cli.bench.cells import Cell

TOKENS = 16384
WIDTH = 2048  # heads x head dimension
DIMS = (64, 128, 256)
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
DTYPES = ("bfloat16", "float16")
PASSES = ("forward", "backward", "both")


def grid(
    passes: Iterable[str] = PASSES,
    dtypes: Iterable[str] = DTYPES,
    dims: Iterable[int] = DIMS,
    seqlens: Iterable[int] = SEQLENS,
    *,
    tokens: int = TOKENS,
    heads: int | None = None,
    batch: int | None = None,
) -> list[Cell]:
    return [
        Cell(
            direction,
            dtype,
            dim,
            causal,
            seqlen,
            heads or max(1, WIDTH // dim),
            batch or max(1, tokens // seqlen),
        )
        for dtype, direction, dim, causal, seqlen in itertools.product(
            dtypes, passes, dims, (False, True), seqlens
        )
    ]
