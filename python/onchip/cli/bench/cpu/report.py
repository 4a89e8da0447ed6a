# SPDX-License-Identifier: Apache-2.0
"""What a run on the CPU is shown as."""

from typing import Any

from rich.table import Table

from onchip.cli.bench.bars import speedup
from onchip.cli.bench.cells import label_of
from onchip.cli.bench.cpu.bars import gemm_share
from onchip.cli.bench.report import markdown_table, ratio_text, spread_of


def heading(document: dict[str, Any]) -> str:
    machine = document["machine"]
    load = machine["load_average"]
    busy = "" if load is None else f", load average {load:.1f} at the start"
    return (
        f"{machine['cpu']}, {document['threads']} of {machine['usable_cpus']} CPUs, "
        f"instruction set {document['isa']}{busy}, {document['date']}"
    )


def _timing(result: dict[str, Any] | None) -> str:
    """Median in milliseconds, and half of the range as a part of it."""
    if result is None:
        return "-"
    text = f"{result['median_seconds'] * 1e3:.1f} [dim]±{spread_of(result):>3.0%}[/]"
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
        table.add_row(
            label_of(cell),
            *(_timing(results.get(name)) for name in names),
            f"{results['onchip']['gflops']:.0f}" if "onchip" in results else "-",
            *(ratio_text(speedup(cell, name)) for name in peers),
            f"{share:.0%}" if share else "",
        )
    return table


def markdown_cells(document: dict[str, Any]) -> str:
    names = list(document["providers"])
    rows = []
    for cell in document["cells"]:
        results = cell["results"]
        rates = [f"{results[name]['gflops']:.0f}" if name in results else "-" for name in names]
        share = gemm_share(cell)
        rows.append((label_of(cell), *rates, f"{share:.0%}" if share else ""))
    return markdown_table(("cell, GFLOP/s", *names, "onchip of the GEMM rate"), rows)
