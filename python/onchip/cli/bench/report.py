# SPDX-License-Identifier: Apache-2.0
"""Tables of what was measured."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from onchip.cli._console import verdict
from onchip.cli.bench.bars import Bar, gemm_share, speedup
from onchip.cli.bench.cells import Cell


def _timing(result: dict[str, Any] | None) -> str:
    """Median in milliseconds, and half of the range as a part of it."""
    if result is None:
        return "-"
    median = result["median_seconds"]
    spread = (result["max_seconds"] - result["min_seconds"]) / 2 / median
    text = f"{median * 1e3:.1f} [dim]±{spread:>3.0%}[/]"
    return text if result["right"] else f"{text} [bold red]wrong[/]"


def cells_table(document: dict[str, Any]) -> Table:
    names = list(document["providers"])
    peers = [name for name in names if name != "onchip"]
    table = Table(title="Milliseconds: median ± half of the range")
    table.add_column("cell", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("GFLOP/s", justify="right")
    for name in peers:
        table.add_column(f"over {name}", justify="right")
    table.add_column("of GEMM", justify="right")
    previous = None
    for cell in document["cells"]:
        group = (cell["direction"], cell["dtype"])
        if previous not in (None, group):
            table.add_section()
        previous = group
        results = cell["results"]
        share = gemm_share(cell)
        ratios = [speedup(cell, name) for name in peers]
        table.add_row(
            Cell.label_of(cell),
            *(_timing(results.get(name)) for name in names),
            f"{results['onchip']['gflops']:.0f}" if "onchip" in results else "-",
            *(f"{ratio:.2f}x" if ratio else "-" for ratio in ratios),
            f"{share:.0%}" if share else "",
        )
    return table


def summary_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="onchip over its peers")
    for name in ("pass", "dtype", "over"):
        table.add_column(name)
    table.add_column("geometric mean", justify="right")
    table.add_column("worst cell", justify="right")
    for row in rows:
        table.add_row(
            row["direction"],
            row["dtype"],
            row["over"],
            f"{row['geomean']:.2f}x",
            f"{row['worst']:.2f}x ({row['worst_cell']})",
        )
    return table


def bars_table(bars: Sequence[Bar]) -> Table:
    table = Table(title="Bars")
    for name in ("bar", "wanted", "measured", ""):
        table.add_column(name)
    for bar in bars:
        table.add_row(bar.name, bar.wanted, bar.measured, verdict(bar.passed))
    return table


def print_facts(console: Console, document: dict[str, Any]) -> None:
    machine = document["machine"]
    load = machine["load_average"]
    busy = "" if load is None else f", load average {load:.1f} at the start"
    console.print(
        f"[bold]{machine['cpu']}[/], {document['threads']} of {machine['usable_cpus']} CPUs, "
        f"instruction set {document['isa']}{busy}, {document['date']}"
    )
    for name, facts in document["providers"].items():
        console.print(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in facts.items()))
    reasons = {
        f"{name}: {reason}"
        for cell in document["cells"]
        for name, reason in cell["skipped"].items()
    }
    for reason in sorted(reasons):
        console.print(f"  [yellow]not measured:[/] {reason}")
