# SPDX-License-Identifier: Apache-2.0
"""The bars that the CUDA backend must clear on its whole grid, in bfloat16; `hopper` has further
ones of that GPU."""

from collections.abc import Iterable, Sequence
from typing import Any

from onchip.cli.bench.bars import (
    Bar,
    geomean_bar,
    right_bar,
    speedup,
    summarise,
    worst_bar,
)
from onchip.cli.bench.gpu import hopper
from onchip.cli.bench.gpu.grid import grid

PEER = "torch-flash"  # FlashAttention-2: the same instructions
DTYPE = "bfloat16"
MIN_GEOMEAN = {"forward": 1.05, "backward": 1.05}
MIN_CELL = 0.9
MAX_GROWTH = 1.05  # bytes of a token in the longest sequence over those in the shortest
UNFUSED_PLACE = {"direction": "both", "dim": 64, "seqlen": 4096}
MIN_OVER_UNFUSED = 5.0
MIN_MEMORY_OVER_UNFUSED = 10.0


def memory_ratio(peaks: dict[str, int | None], over: str) -> float | None:
    """The memory of `over` as a multiple of onchip's; None where either is not known."""
    ours, theirs = peaks.get("onchip"), peaks.get(over)
    return theirs / ours if ours and theirs else None


def peaks_of(cell: dict[str, Any]) -> dict[str, int | None]:
    return {name: result["peak_bytes"] for name, result in cell["results"].items()}


def evaluate(document: dict[str, Any]) -> list[Bar]:
    """Every bar; one whose cells were not measured fails."""
    cells = [cell for cell in document["cells"] if cell["dtype"] == DTYPE]
    rows = {row["direction"]: row for row in summarise(cells, PEER)}
    memory = [record for record in document["memory"] if record["dtype"] == DTYPE]
    return [
        _protocol_bar(cells),
        right_bar(document["cells"], "the unfused computation in float32"),
        *(
            geomean_bar(f"{name} over {PEER}", rows.get(name), least)
            for name, least in MIN_GEOMEAN.items()
        ),
        worst_bar(rows.values(), PEER, MIN_CELL),
        _growth_bar(memory),
        _memory_bar(cells, memory),
        *_unfused_bars(cells),
        *hopper.evaluate(document),
    ]


def _protocol_bar(cells: Sequence[dict[str, Any]]) -> Bar:
    wanted = {tuple(cell.as_dict().values()) for cell in grid(dtypes=[DTYPE])}
    names = ("direction", "dtype", "dim", "causal", "seqlen", "heads", "batch")
    ran = {tuple(cell[name] for name in names) for cell in cells if speedup(cell, PEER) is not None}
    return Bar(
        f"protocol: the whole grid in {DTYPE}, beside {PEER}",
        f"{len(wanted)} cells",
        f"{len(wanted & ran)} cells",
        wanted <= ran,
    )


def _growth_bar(memory: Sequence[dict[str, Any]]) -> Bar:
    growths = []
    for dim in {record["dim"] for record in memory}:
        per_token = {
            record["seqlen"]: record["peak_bytes"]["onchip"] / record["seqlen"]
            for record in memory
            if record["dim"] == dim and record["peak_bytes"].get("onchip")
        }
        if len(per_token) > 1:
            growths.append(per_token[max(per_token)] / per_token[min(per_token)])
    return Bar(
        "peak memory of forward + backward is linear in s: growth of the bytes a token",
        f"<= {MAX_GROWTH:g}x",
        f"{max(growths):.3f}x" if growths else "not measured",
        bool(growths) and max(growths) <= MAX_GROWTH,
    )


def _memory_bar(cells: Iterable[dict[str, Any]], memory: Iterable[dict[str, Any]]) -> Bar:
    peaks = [peaks_of(cell) for cell in cells if cell["direction"] == "both"]
    peaks += [record["peak_bytes"] for record in memory]
    ratios = [ratio for x in peaks if (ratio := memory_ratio(x, PEER)) is not None]
    worst = 1 / min(ratios) if ratios else None
    return Bar(
        f"peak memory of forward + backward over {PEER}, worst of cells and lengths",
        "<= 1",
        f"{worst:.4f} of {len(ratios)}" if worst else "not measured",
        worst is not None and worst <= 1,
    )


def _unfused_bars(cells: Iterable[dict[str, Any]]) -> list[Bar]:
    """Each mask must clear them: the worse one decides."""
    times: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for cell in cells:
        if all(cell[name] == x for name, x in UNFUSED_PLACE.items()):
            mask = "causal" if cell["causal"] else "full"
            if ratio := speedup(cell, "unfused"):
                times[mask] = ratio
            if ratio := memory_ratio(peaks_of(cell), "unfused"):
                sizes[mask] = ratio
    bars = []
    for what, ratios, least in (
        ("speed", times, MIN_OVER_UNFUSED),
        ("memory", sizes, MIN_MEMORY_OVER_UNFUSED),
    ):
        both = len(ratios) == 2
        each = ", ".join(f"{mask} {ratio:.2f}x" for mask, ratio in ratios.items())
        bars.append(
            Bar(
                f"{what} over unfused, forward + backward, s=4096 d=64, each mask",
                f">= {least:g}x",
                each if both else "not measured",
                both and min(ratios.values()) >= least,
            )
        )
    return bars
