# SPDX-License-Identifier: Apache-2.0
"""What is measured: the grid, the FLOP count and the tensors."""

import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DTYPES = ("float32", "bfloat16", "float16")
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    direction: str  # "forward" or "backward"
    dtype: str
    dim: int
    causal: bool
    seqlen: int = 2048
    heads: int = 8
    batch: int = 1

    @property
    def flops(self) -> float:
        """Of the matrix products; a causal mask halves them, backward makes 2.5 times as many."""
        full = 4.0 * self.batch * self.heads * self.seqlen**2 * self.dim
        return full * (0.5 if self.causal else 1.0) * (2.5 if self.direction == "backward" else 1.0)

    @property
    def label(self) -> str:
        return self.label_of(self.as_dict())

    @staticmethod
    def label_of(record: dict[str, Any]) -> str:
        """The label of a cell or of its record."""
        mask = "causal" if record["causal"] else "full"
        return f"{record['direction']} {record['dtype']} d={record['dim']} {mask}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Tensors(NamedTuple):
    """The inputs, as (B, H, S, D) memory: the peer's own layout. onchip reads it by its strides."""

    q: Array
    k: Array
    v: Array
    dout: Array


def grid(
    directions: Iterable[str],
    dtypes: Iterable[str],
    dims: Iterable[int],
    *,
    seqlen: int,
    heads: int,
    batch: int,
) -> list[Cell]:
    return [
        Cell(direction, dtype, dim, causal, seqlen, heads, batch)
        for direction, dtype, dim, causal in itertools.product(
            directions, dtypes, dims, (False, True)
        )
    ]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of that name; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def make_tensors(cell: Cell) -> Tensors:
    """Standard normal values, the same for a cell in every run."""
    rng = np.random.default_rng(20260101)
    shape = (cell.batch, cell.heads, cell.seqlen, cell.dim)
    dtype = numpy_dtype(cell.dtype)
    return Tensors(*(rng.standard_normal(shape, np.float32).astype(dtype) for _ in range(4)))
