# SPDX-License-Identifier: Apache-2.0
"""What a run on a GPU is shown as."""

from typing import Any

from rich.table import Table

from onchip.cli._console import format_bytes
from onchip.cli.bench.bars import geomean, speedup
from onchip.cli.bench.cells import distinct, label_of
from onchip.cli.bench.gpu import hopper
from onchip.cli.bench.gpu.bars import PEER
from onchip.cli.bench.gpu.grid import SEQLENS
from onchip.cli.bench.report import markdown_table, ratio_text, spread_of


def heading(document: dict[str, Any]) -> str:
    device, first = document["device"], document["cells"][0]
    tokens = first["batch"] * first["seqlen"]
    width = first["heads"] * first["dim"]
    return (
        f"{device['name']}, driver {document['driver']}, {tokens} tokens, heads x d = {width}, "
        f"{document['date']}"
    )


def measured_names(document: dict[str, Any]) -> list[str]:
    """The providers that computed a cell."""
    return [
        name
        for name in document["providers"]
        if any(name in cell["results"] for cell in document["cells"])
    ]


def peer_names(document: dict[str, Any]) -> list[str]:
    """Those that are not this library."""
    return [name for name in measured_names(document) if name not in ("onchip", hopper.SAFE)]


def _rate(result: dict[str, Any] | None) -> str:
    """TFLOP/s, and half of the samples' range as a part of the median."""
    if result is None:
        return "-"
    text = f"{result['gflops'] / 1e3:.0f} [dim]±{spread_of(result):>2.0%}[/]"
    return text if result["right"] else f"{text} [bold red]wrong[/]"


def cells_table(document: dict[str, Any]) -> Table:
    names = measured_names(document)
    peers = peer_names(document)
    table = Table(title="TFLOP/s: median ± half of the range; peak memory")
    table.add_column("cell", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for name in peers:
        table.add_column(f"over {name}", justify="right")
    table.add_column("memory", justify="right")
    previous = None
    for cell in document["cells"]:
        group = (cell["direction"], cell["dtype"], cell["dim"])
        if previous not in (None, group):
            table.add_section()
        previous = group
        results = cell["results"]
        peak = results.get("onchip", {}).get("peak_bytes")
        table.add_row(
            label_of(cell),
            *(_rate(results.get(name)) for name in names),
            *(ratio_text(speedup(cell, name)) for name in peers),
            format_bytes(peak) if peak else "-",
        )
    return table


def _short(kernel: str) -> str:
    """The kernel's name without what C++ puts around it."""
    bare = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return bare.partition("<")[0].partition("(")[0][:72]


def kernel_lines(document: dict[str, Any]) -> list[str]:
    """What each provider ran, by the profiler, in the longest cells that are not causal."""
    lines = []
    for record in document["kernels"]:
        names = ", ".join(
            f"`{_short(kernel['name'])}` {kernel['microseconds']:.0f} us"
            for kernel in record["kernels"][:3]
        )
        lines.append(f"{record['provider']}, {label_of(record)}: {names or 'not known'}")
    return lines


def markdown_rates(document: dict[str, Any]) -> str:
    """One table for each dtype and pass: rows by head dimension and mask, columns by length."""
    parts = []
    cells = document["cells"]
    for dtype in distinct(cells, "dtype"):
        for direction in distinct(cells, "direction"):
            group = [c for c in cells if (c["dtype"], c["direction"]) == (dtype, direction)]
            parts.append(
                f"### {direction}, {dtype}\n\nTFLOP/s of onchip, in brackets over {PEER}.\n\n"
                + _rates_table(group)
            )
    return "\n".join(parts)


def _rates_table(cells: list[dict[str, Any]]) -> str:
    lengths = sorted(distinct(cells, "seqlen"))
    rows: dict[str, dict[int, str]] = {}
    for cell in cells:
        ours = cell["results"].get("onchip")
        ratio = speedup(cell, PEER)
        text = f"{ours['gflops'] / 1e3:.0f}" if ours else "-"
        name = f"d={cell['dim']} {'causal' if cell['causal'] else 'full'}"
        rows.setdefault(name, {})[cell["seqlen"]] = text + (f" ({ratio:.2f})" if ratio else "")
    return markdown_table(
        ("", *(f"s={length}" for length in lengths)),
        [(name, *(row.get(length, "-") for length in lengths)) for name, row in rows.items()],
    )


def markdown_scores(document: dict[str, Any]) -> str:
    """A table for each dtype where kernels for Hopper ran beside cuDNN; else nothing."""
    if not hopper.kernels_ran(document):
        return ""
    parts = []
    for dtype in distinct(document["cells"], "dtype"):
        if ours := hopper.scores(document, dtype):
            safe = hopper.scores(document, dtype, hopper.SAFE)
            note = ', in brackets with `softmax="safe"`' if safe else ""
            parts.append(
                f"\n### Score of forward, {dtype}\n\n"
                f"onchip over {hopper.CUDNN} in this run, as a part of the lead over it that the "
                "fastest of cuDNN, FlashAttention-3 and FlashAttention-4 had when they were "
                f"measured: above 1 is faster than all three{note}.\n\n" + _scores_table(ours, safe)
            )
    return "".join(parts)


def _scores_table(ours: dict[hopper.Place, float], safe: dict[hopper.Place, float]) -> str:
    """Rows by head dimension and mask, columns by length; then the rows' geometric means."""

    def text(score: float | None, with_safe: float | None) -> str:
        return (f"{score:.2f}" if score else "-") + (f" ({with_safe:.2f})" if with_safe else "")

    rows = []
    for dim, causal in dict.fromkeys((place.dim, place.causal) for place in ours):
        places = [hopper.Place(dim, causal, seqlen) for seqlen in SEQLENS]
        means = (geomean(x[place] for place in places if place in x) for x in (ours, safe))
        rows.append(
            (
                f"d={dim} {'causal' if causal else 'full'}",
                *(text(ours.get(place), safe.get(place)) for place in places),
                text(*means),
            )
        )
    return markdown_table(("", *(f"s={length}" for length in SEQLENS), "geometric mean"), rows)


def markdown_memory(document: dict[str, Any]) -> str:
    """Peak memory of one sequence, forward and backward."""
    records = document["memory"]
    names = list(dict.fromkeys(name for record in records for name in record["peak_bytes"]))

    def text(record: dict[str, Any], name: str) -> str:
        peak = record["peak_bytes"].get(name)
        return format_bytes(peak) if peak else "-"

    return markdown_table(
        ("one sequence, forward + backward", *names),
        [
            (
                f"{record['dtype']} d={record['dim']} h={record['heads']} s={record['seqlen']}",
                *(text(record, name) for name in names),
            )
            for record in records
        ],
    )
