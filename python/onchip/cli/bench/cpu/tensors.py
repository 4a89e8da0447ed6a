# SPDX-License-Identifier: Apache-2.0
"""The inputs of a cell as NumPy arrays, and how far two results are apart."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onchip.cli.bench.cells import Cell, Tensors

Array = NDArray[Any]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of that name; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def make_tensors(cell: Cell) -> Tensors:
    """Standard normal values, the same for a cell in every run, as (B, H, S, D) memory: the peer's
    own layout. onchip reads it by its strides."""
    rng = np.random.default_rng(20260101)
    shape = (cell.batch, cell.heads, cell.seqlen, cell.dim)
    dtype = numpy_dtype(cell.dtype)
    return Tensors(*(rng.standard_normal(shape, np.float32).astype(dtype) for _ in range(4)))


def relative_error(arrays: list[Array], expected: list[Array]) -> float:
    """Largest error over the largest value, of the worst of the results."""
    errors = [
        np.max(np.abs(x - y)) / max(float(np.max(np.abs(y))), 1e-30)
        for x, y in zip(arrays, expected, strict=True)
    ]
    return float(np.max(errors))  # NaN where any is, unlike max()
