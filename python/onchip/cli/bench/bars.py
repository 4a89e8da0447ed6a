# SPDX-License-Identifier: Apache-2.0
"""Ratios, their means, and the bars that the CPU backend must clear, from measured results only."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from onchip.cli.bench.cells import DTYPES, PASSES

PEER = "torch"
MIN_GEOMEAN = {
    ("forward", "float32"): 1.2,
    ("forward", "bfloat16"): 1.0,
    ("forward", "float16"): 1.0,
    ("backward", "float32"): 1.2,
    ("backward", "bfloat16"): 5.0,
    ("backward", "float16"): 5.0,
}
MIN_CELL = 0.9
MIN_GEMM_SHARE = 0.6
MAX_MEMORY_SHARE = 0.02
PROTOCOL = {"threads": 2, "isa": "avx2", "batch": 1, "heads": 8, "seqlen": 2048}
PROTOCOL_DIMS = (64, 128)
PROTOCOL_TORCH = "2.13"


@dataclass(frozen=True)
class Bar:
    name: str
    wanted: str
    measured: str
    passed: bool


def speedup(record: dict[str, Any], over: str) -> float | None:
    """How many times as fast as `over` onchip was in this cell; None where either did not run."""
    ours, theirs = record["results"].get("onchip"), record["results"].get(over)
    if ours is None or theirs is None:
        return None
    return float(theirs["median_seconds"] / ours["median_seconds"])


def gemm_share(record: dict[str, Any]) -> float | None:
    """onchip's rate as a part of the float32 GEMM rate measured in the same cell."""
    ours, gemm = record["results"].get("onchip"), record["gemm"]
    return float(ours["gflops"] / gemm["gflops"]) if ours and gemm else None


def geomean(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def summarise(cells: Sequence[dict[str, Any]], over: str) -> list[dict[str, Any]]:
    """Geometric mean and worst cell of each (pass, dtype) that was measured."""
    rows = []
    for direction, dtype in itertools.product(PASSES, DTYPES):
        ratios = {
            f"d={cell['dim']} {'causal' if cell['causal'] else 'full'}": ratio
            for cell in cells
            if (cell["direction"], cell["dtype"]) == (direction, dtype)
            and (ratio := speedup(cell, over)) is not None
        }
        if ratios:
            worst = min(ratios, key=lambda label: ratios[label])
            rows.append(
                {
                    "direction": direction,
                    "dtype": dtype,
                    "over": over,
                    "geomean": geomean(ratios.values()),
                    "worst_cell": worst,
                    "worst": ratios[worst],
                    "cells": len(ratios),
                }
            )
    return rows


def evaluate(document: dict[str, Any]) -> list[Bar]:
    """Every bar; one whose cells were not measured fails."""
    cells = document["cells"]
    summary = {(row["direction"], row["dtype"]): row for row in summarise(cells, PEER)}
    bars = [_protocol_bar(document), _right_bar(cells)]
    for (direction, dtype), wanted in MIN_GEOMEAN.items():
        row = summary.get((direction, dtype))
        bars.append(
            Bar(
                f"{direction} {dtype} over {PEER}, geometric mean",
                f">= {wanted:g}x",
                f"{row['geomean']:.2f}x of {row['cells']} cells" if row else "not measured",
                row is not None and row["geomean"] >= wanted,
            )
        )
    bars.append(_worst_bar(summary.values()))
    bars.append(_gemm_bar(cells))
    bars.append(_memory_bar(document.get("memory")))
    return bars


def _protocol_bar(document: dict[str, Any]) -> Bar:
    cells = document["cells"]
    ran = {"threads": {document["threads"]}, "isa": {document["isa"]}} | {
        name: {cell[name] for cell in cells} for name in ("batch", "heads", "seqlen")
    }
    wrong = {
        name: "/".join(map(str, sorted(values)))
        for name, values in ran.items()
        if values != {PROTOCOL[name]}
    }
    wanted_cells = len(MIN_GEOMEAN) * len(PROTOCOL_DIMS) * 2
    torch = document["providers"].get(PEER, {}).get("version", "missing")
    if not torch.startswith(PROTOCOL_TORCH + "."):
        wrong["torch"] = torch
    complete = [cell for cell in cells if speedup(cell, PEER) is not None]
    if len(complete) < wanted_cells:
        wrong["cells"] = f"{len(complete)} of {wanted_cells}"
    return Bar(
        "protocol",
        ", ".join(f"{name} {value}" for name, value in PROTOCOL.items())
        + f", torch {PROTOCOL_TORCH}, every cell",
        ", ".join(f"{name} {value}" for name, value in wrong.items()) or "as wanted",
        not wrong,
    )


def _right_bar(cells: Sequence[dict[str, Any]]) -> Bar:
    results = [cell["results"]["onchip"] for cell in cells if "onchip" in cell["results"]]
    wrong = sum(not result["right"] for result in results)
    return Bar(
        "results agree with the unfused computation",
        "all",
        f"{len(results) - wrong} of {len(results)} cells",
        bool(results) and wrong == 0,
    )


def _worst_bar(rows: Iterable[dict[str, Any]]) -> Bar:
    worst = min(rows, key=lambda row: float(row["worst"]), default=None)
    return Bar(
        f"worst cell over {PEER}",
        f">= {MIN_CELL:g}x",
        f"{worst['worst']:.2f}x ({worst['direction']} {worst['dtype']} {worst['worst_cell']})"
        if worst
        else "not measured",
        worst is not None and worst["worst"] >= MIN_CELL,
    )


def _gemm_bar(cells: Sequence[dict[str, Any]]) -> Bar:
    shares = [
        share
        for cell in cells
        if (cell["direction"], cell["dtype"], cell["dim"]) == ("forward", "float32", 128)
        and (share := gemm_share(cell)) is not None
    ]
    return Bar(
        "forward float32 d=128 full, of the GEMM rate",
        f">= {MIN_GEMM_SHARE:.0%}",
        f"{shares[0]:.0%}" if shares else "not measured",
        bool(shares) and shares[0] >= MIN_GEMM_SHARE,
    )


def _memory_bar(memory: dict[str, Any] | None) -> Bar:
    share = memory["share"] if memory else None
    return Bar(
        "extra memory, forward + backward, s=32768 d=64, of N x N float32",
        f"< {MAX_MEMORY_SHARE:.0%}",
        f"{share:.2%}" if share is not None else "not measured",
        share is not None and share < MAX_MEMORY_SHARE,
    )
