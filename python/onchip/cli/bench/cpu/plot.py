# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

from onchip.cli.bench.cells import distinct


def save_rates(document: dict[str, Any], path: Path) -> None:
    """One panel for each pass and dtype: the rate of every provider in every cell."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    cells = document["cells"]
    names = [name for name, facts in document["providers"].items() if "unavailable" not in facts]
    directions, dtypes = distinct(cells, "direction"), distinct(cells, "dtype")
    figure, axes = plt.subplots(
        len(directions),
        len(dtypes),
        figsize=(4.2 * len(dtypes), 3.2 * len(directions)),
        squeeze=False,
        constrained_layout=True,
    )
    for row, direction in enumerate(directions):
        for column, dtype in enumerate(dtypes):
            panel = [c for c in cells if (c["direction"], c["dtype"]) == (direction, dtype)]
            axis = axes[row][column]
            _draw_panel(axis, panel, names)
            axis.set_title(f"{direction}, {dtype}")
            if column == 0:
                axis.set_ylabel("GFLOP/s")
    axes[0][0].legend(loc="upper left", fontsize="small")
    first = cells[0]
    figure.suptitle(
        f"{document['machine']['cpu']}, {document['threads']} threads, {document['isa']}, "
        f"b={first['batch']} h={first['heads']} s={first['seqlen']}"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_panel(axis: Any, panel: list[dict[str, Any]], names: list[str]) -> None:
    width = 0.8 / max(len(names), 1)
    for index, name in enumerate(names):
        results = [cell["results"].get(name) for cell in panel]
        rates = [result["gflops"] if result else 0.0 for result in results]
        places = [x + (index - (len(names) - 1) / 2) * width for x in range(len(panel))]
        axis.bar(places, rates, width, label=name)
    axis.set_xticks(
        range(len(panel)),
        [f"d={cell['dim']}\n{'causal' if cell['causal'] else 'full'}" for cell in panel],
    )
    gemm = [cell["gemm"]["gflops"] for cell in panel if cell["gemm"]]
    if gemm:
        axis.axhline(max(gemm), color="gray", linestyle="--", linewidth=1)
        axis.text(0.99, max(gemm), "float32 GEMM", ha="right", va="bottom", fontsize="x-small",
                  transform=axis.get_yaxis_transform())  # fmt: skip
