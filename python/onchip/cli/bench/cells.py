# SPDX-License-Identifier: Apache-2.0
"""What is measured: one cell, its FLOP count and its name."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

DTYPES = ("float32", "bfloat16", "float16")
# How many times the FLOP of the forward pass; backward computes S again and has four more products.
FLOPS_OF_PASS = {"forward": 1.0, "backward": 2.5, "both": 3.5}


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    direction: str  # a name of FLOPS_OF_PASS
    dtype: str
    dim: int
    causal: bool
    seqlen: int = 2048
    heads: int = 8
    batch: int = 1

    @property
    def flops(self) -> float:
        """Of the matrix products; a causal mask halves them."""
        full = 4.0 * self.batch * self.heads * self.seqlen**2 * self.dim
        return full * (0.5 if self.causal else 1.0) * FLOPS_OF_PASS[self.direction]

    @property
    def label(self) -> str:
        return label_of(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def place_of(record: dict[str, Any]) -> str:
    """Names a cell among those of one pass and dtype; takes the record of a cell."""
    mask = "causal" if record["causal"] else "full"
    return f"d={record['dim']} {mask} s={record['seqlen']}"


def label_of(record: dict[str, Any]) -> str:
    return f"{record['direction']} {record['dtype']} {place_of(record)}"


class Tensors(NamedTuple):
    """The inputs that every provider of a cell reads; arrays or tensors, as the providers take."""

    q: Any
    k: Any
    v: Any
    dout: Any


def distinct(records: Iterable[dict[str, Any]], field: str) -> list[Any]:
    """The values of a field, each once, in the order in which they come."""
    return list(dict.fromkeys(record[field] for record in records))
