# SPDX-License-Identifier: Apache-2.0
"""The figures of a run on a GPU, of its first dtype."""

from pathlib import Path
from typing import Any

from onchip.cli.bench.cells import distinct
from onchip.cli.bench.gpu.report import measured_names


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _cells(document: dict[str, Any]) -> list[dict[str, Any]]:
    dtype = document["cells"][0]["dtype"]
    return [cell for cell in document["cells"] if cell["dtype"] == dtype]


def _save(figure: Any, document: dict[str, Any], path: Path) -> None:
    figure.suptitle(f"{document['device']['name']}, {document['cells'][0]['dtype']}")
    figure.savefig(path, dpi=110)
    _pyplot().close(figure)


def _panels(rows: int, columns: int) -> tuple[Any, Any]:
    return _pyplot().subplots(  # type: ignore[no-any-return]
        rows,
        columns,
        figsize=(4.2 * columns, 3.2 * rows),
        squeeze=False,
        constrained_layout=True,
    )


def _length_axis(axis: Any, lengths: list[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [str(length) for length in lengths], fontsize="x-small")
    axis.set_xlabel("sequence length")


def save_speed(document: dict[str, Any], path: Path) -> None:
    """TFLOP/s against s: a row of panels for each pass, a column for each head dimension."""
    cells = _cells(document)
    passes, dims = distinct(cells, "direction"), distinct(cells, "dim")
    figure, axes = _panels(len(passes), len(dims))
    for row, direction in enumerate(passes):
        for column, dim in enumerate(dims):
            axis = axes[row][column]
            panel = [c for c in cells if (c["direction"], c["dim"]) == (direction, dim)]
            for index, name in enumerate(measured_names(document)):
                for causal in (False, True):
                    points = [
                        (cell["seqlen"], cell["results"][name]["gflops"] / 1e3)
                        for cell in panel
                        if cell["causal"] == causal and name in cell["results"]
                    ]
                    axis.plot(
                        *(zip(*points, strict=True) if points else ((), ())),
                        color=f"C{index}",
                        linestyle="--" if causal else "-",
                        marker=".",
                        label=name if not causal else None,
                    )
            axis.set_title(f"{direction}, d={dim} (dashed: causal)", fontsize="small")
            axis.set_ylim(bottom=0)
            _length_axis(axis, distinct(panel, "seqlen"))
        axes[row][0].set_ylabel("TFLOP/s")
    axes[0][0].legend(loc="lower right", fontsize="x-small")
    _save(figure, document, path)


def save_memory(document: dict[str, Any], path: Path) -> None:
    """Peak memory of forward and backward against s, one sequence, both axes logarithmic."""
    dtype = document["cells"][0]["dtype"]
    records = [record for record in document["memory"] if record["dtype"] == dtype]
    dims = distinct(records, "dim")
    figure, axes = _panels(1, max(1, len(dims)))
    for axis, dim in zip(axes[0], dims, strict=False):
        panel = [record for record in records if record["dim"] == dim]
        for index, name in enumerate(measured_names(document)):
            points = [
                (record["seqlen"], record["peak_bytes"][name] / 2**20)
                for record in panel
                if record["peak_bytes"].get(name)
            ]
            if points:
                axis.plot(*zip(*points, strict=True), color=f"C{index}", marker=".", label=name)
        axis.set_yscale("log")
        axis.set_title(f"one sequence, forward + backward, d={dim}", fontsize="small")
        _length_axis(axis, distinct(panel, "seqlen"))
        axis.legend(fontsize="x-small")
    axes[0][0].set_ylabel("peak memory, MiB")
    _save(figure, document, path)


def save_roofline(document: dict[str, Any], path: Path) -> None:
    """Rates over FLOP a byte of device memory, as the cost model predicts the bytes."""
    figure, axes = _panels(1, 1)
    figure.set_size_inches(7.5, 5)
    axis = axes[0][0]
    points: dict[str, list[tuple[float, float]]] = {}
    for cell in _cells(document):
        if cell["direction"] == "both":
            continue
        for name, size in (("onchip", "bytes"), ("unfused", "unfused_bytes")):
            if name in cell["results"]:
                kernel = cell["plan"]["kernels"][0] if name == "onchip" else name
                points.setdefault(kernel, []).append(
                    (cell["flops"] / cell["plan"][size], cell["results"][name]["gflops"] / 1e3)
                )
    for kernel, places in points.items():
        axis.plot(*zip(*places, strict=True), ".", label=kernel)
    device = document["device"]
    peak, bandwidth = device["flops_16bit"] / 1e12, device["bandwidth"] / 1e12
    if peak and bandwidth:
        ridge = peak / bandwidth
        furthest = max([2 * ridge, *(x for places in points.values() for x, _ in places)])
        axis.plot([ridge / 16, ridge, furthest], [peak / 16, peak, peak], color="gray")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("FLOP a byte of device memory (predicted)")
    axis.set_ylabel("TFLOP/s")
    axis.legend(fontsize="x-small")
    _save(figure, document, path)
