# SPDX-License-Identifier: Apache-2.0
"""Ratios, their means, and what a bar is: all from measured results only."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from onchip.cli.bench.cells import place_of


@dataclass(frozen=True)
class Bar:
    name: str
    wanted: str
    measured: str
    passed: bool


def speedup(record: dict[str, Any], over: str, of: str = "onchip") -> float | None:
    """How many times as fast as `over` this was in a cell; None where either did not run."""
    ours, theirs = record["results"].get(of), record["results"].get(over)
    if ours is None or theirs is None:
        return None
    return float(theirs["median_seconds"] / ours["median_seconds"])


def geomean(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def summarise(
    cells: Sequence[dict[str, Any]], over: str, by: Sequence[str] = ("direction", "dtype")
) -> list[dict[str, Any]]:
    """Geometric mean and worst cell of the cells that agree in the fields `by`, in their order."""
    groups: dict[tuple[Any, ...], dict[str, float]] = {}
    for cell in cells:
        ratio = speedup(cell, over)
        if ratio is not None:
            groups.setdefault(tuple(cell[field] for field in by), {})[place_of(cell)] = ratio
    rows = []
    for group, ratios in groups.items():
        worst = min(ratios, key=lambda place: ratios[place])
        rows.append(
            {
                **dict(zip(by, group, strict=True)),
                "over": over,
                "geomean": geomean(ratios.values()),
                "worst_cell": worst,
                "worst": ratios[worst],
                "cells": len(ratios),
            }
        )
    return rows


def right_bar(cells: Sequence[dict[str, Any]], reference: str) -> Bar:
    results = [cell["results"]["onchip"] for cell in cells if "onchip" in cell["results"]]
    wrong = sum(not result["right"] for result in results)
    return Bar(
        f"results agree with {reference}",
        "all",
        f"{len(results) - wrong} of {len(results)} cells",
        bool(results) and wrong == 0,
    )


def worst_bar(rows: Iterable[dict[str, Any]], over: str, least: float) -> Bar:
    """Of rows of `summarise`."""
    worst = min(rows, key=lambda row: float(row["worst"]), default=None)
    return Bar(
        f"worst cell over {over}",
        f">= {least:g}x",
        f"{worst['worst']:.2f}x ({worst['direction']} {worst['dtype']} {worst['worst_cell']})"
        if worst
        else "not measured",
        worst is not None and worst["worst"] >= least,
    )


def geomean_bar(name: str, row: dict[str, Any] | None, least: float) -> Bar:
    """Of a row of `summarise`."""
    return Bar(
        f"{name}, geometric mean",
        f">= {least:g}x",
        f"{row['geomean']:.2f}x of {row['cells']} cells" if row else "not measured",
        row is not None and row["geomean"] >= least,
    )
