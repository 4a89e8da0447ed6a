# SPDX-License-Identifier: Apache-2.0
"""Tables that the results of every device have, on a terminal and in Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from onchip.cli._console import verdict
from onchip.cli.bench.bars import Bar


def ratio_text(ratio: float | None) -> str:
    return f"{ratio:.2f}x" if ratio else "-"


def spread_of(result: dict[str, Any]) -> float:
    """Half of the range of the samples as a part of their median."""
    return float((result["max_seconds"] - result["min_seconds"]) / 2 / result["median_seconds"])


def summary_table(rows: Sequence[dict[str, Any]], by: Sequence[str]) -> Table:
    """Of rows of `bars.summarise`, with the fields `by` first."""
    table = Table(title="onchip over its peers")
    for name in (*by, "over"):
        table.add_column(name.replace("direction", "pass"))
    table.add_column("geometric mean", justify="right")
    table.add_column("worst cell", justify="right")
    for row in rows:
        table.add_row(
            *(str(row.get(name, "all")) for name in (*by, "over")),
            ratio_text(row["geomean"]),
            f"{ratio_text(row['worst'])} ({row['worst_cell']})",
        )
    return table


def bars_table(bars: Sequence[Bar]) -> Table:
    table = Table(title="Bars")
    for name in ("bar", "wanted", "measured", ""):
        table.add_column(name)
    for bar in bars:
        table.add_row(bar.name, bar.wanted, bar.measured, verdict(bar.passed))
    return table


def provider_lines(document: dict[str, Any]) -> list[str]:
    """Each provider's facts, then why cells were not measured."""
    lines = [
        f"{name}: " + ", ".join(f"{key} {value}" for key, value in facts.items())
        for name, facts in document["providers"].items()
    ]
    reasons: dict[tuple[str, str], int] = {}
    for cell in document["cells"]:
        for skipped in cell["skipped"].items():
            reasons[skipped] = reasons.get(skipped, 0) + 1
    for (name, reason), count in sorted(reasons.items()):
        lines.append(f"{name}, {count} cells not measured: {reason}")
    return lines


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """The first `left` columns to the left, the others to the right."""
    marks = ["---" if column < left else "---:" for column in range(len(header))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, marks, *rows))


def markdown_bars(bars: Sequence[Bar]) -> str:
    return markdown_table(
        ("bar", "wanted", "measured", ""),
        [(x.name, x.wanted, x.measured, "pass" if x.passed else "**fail**") for x in bars],
        left=4,
    )


def markdown_summary(rows: Sequence[dict[str, Any]], by: Sequence[str]) -> str:
    return markdown_table(
        (*(name.replace("direction", "pass") for name in by), "over", "geometric mean",
         "worst cell", "where"),
        [
            (*(str(row.get(name, "all")) for name in (*by, "over")),
             f"{row['geomean']:.2f}", f"{row['worst']:.2f}", row["worst_cell"])
            for row in rows
        ],
        left=len(by) + 1,
    )  # fmt: skip
