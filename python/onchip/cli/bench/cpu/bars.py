# SPDX-License-Identifier: Apache-2.0
"""The bars that the CPU backend must clear."""

from collections.abc import Sequence
from typing import Any

from onchip.cli.bench.bars import Bar, geomean_bar, right_bar, speedup, summarise, worst_bar

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


def gemm_share(record: dict[str, Any]) -> float | None:
    """onchip's rate as a part of the float32 GEMM rate measured in the same cell."""
    ours, gemm = record["results"].get("onchip"), record["gemm"]
    return float(ours["gflops"] / gemm["gflops"]) if ours and gemm else None


def evaluate(document: dict[str, Any]) -> list[Bar]:
    """Every bar; one whose cells were not measured fails."""
    cells = document["cells"]
    summary = {(row["direction"], row["dtype"]): row for row in summarise(cells, PEER)}
    return [
        _protocol_bar(document),
        right_bar(cells, "the unfused computation"),
        *(
            geomean_bar(f"{direction} {dtype} over {PEER}", summary.get((direction, dtype)), least)
            for (direction, dtype), least in MIN_GEOMEAN.items()
        ),
        worst_bar(summary.values(), PEER, MIN_CELL),
        _gemm_bar(cells),
        _memory_bar(document.get("memory")),
    ]


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
