# SPDX-License-Identifier: Apache-2.0
"""Reads tests/cases/*.json: problems with their right answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import oracle

DIRECTORY = Path(__file__).parent.parent / "cases"
FILES = sorted(DIRECTORY.glob("*.json"))

Array = np.ndarray[Any, Any]


def _array(entry: dict[str, Any]) -> Array:
    values = np.array([float(x) for x in entry["data"]], np.float64).reshape(entry["shape"])
    return values.astype(np.int32) if entry["dtype"] == "int32" else values


@dataclass
class Case:
    """Inputs and right answers in float64 (lengths in int32), under the library's names."""

    name: str
    op: str
    inputs: dict[str, Array]
    options: dict[str, Any]
    expect: dict[str, Array]
    tolerance: float
    deterministic: bool = False  # asked of backward
    wide_bias: bool = False  # bias in the statistics' dtype

    @property
    def qkv(self) -> tuple[Array, Array, Array]:
        q, k, v = ("q", "k_cache", "v_cache") if self.op == "paged" else ("q", "k", "v")
        return self.inputs[q], self.inputs[k], self.inputs[v]

    @property
    def has_gradients(self) -> bool:
        return "dout" in self.inputs

    @property
    def rest(self) -> dict[str, Array]:
        """Inputs that are options: bias, slopes, sinks, lengths, block table."""
        named = {"q", "k", "v", "k_cache", "v_cache", "dout", "dlse"}
        return {name: x for name, x in self.inputs.items() if name not in named}

    @property
    def oracle_options(self) -> dict[str, Any]:
        renamed = {"seqlens_k": "seqused_k"}
        given = {**self.options, **{renamed.get(name, name): x for name, x in self.rest.items()}}
        for how in ("split_size", "softmax"):  # not what to compute
            given.pop(how, None)
        return given

    def reference(self, precision: str = "float64", grid: float = 1.0) -> dict[str, Array]:
        """What oracle.py makes of it: the right answer, or the naive computation's."""
        options = {**self.oracle_options, "precision": precision, "grid": grid}
        out, lse = oracle.forward(*self.qkv, **options)
        found = {"out": out, "lse": lse}
        if self.has_gradients:
            gradients = oracle.backward(
                self.inputs["dout"],
                *self.qkv,
                dlse=self.inputs.get("dlse"),
                **options,
            )
            found.update((n, x) for n, x in gradients._asdict().items() if x is not None)
        return found


def read(path: Path) -> Case:
    raw = json.loads(path.read_text())
    options = dict(raw["options"])
    if "window" in options:
        options["window"] = tuple(options["window"])
    return Case(
        name=raw["name"],
        op=raw["op"],
        inputs={name: _array(x) for name, x in raw["inputs"].items()},
        options=options,
        expect={name: _array(x) for name, x in raw["expect"].items()},
        tolerance=raw["tolerance_float32"],
    )
