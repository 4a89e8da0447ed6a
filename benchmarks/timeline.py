#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what onchip_timeline printed: what the roles of one block do when, for a few tiles.

    python benchmarks/timeline.py <marks.json> [<picture.png>] [--first-tile 3] [--tiles 2]

It prints how many clocks a tile each role spends on what.
"""

import argparse
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

# Waits are pale, products green, the softmax red to yellow, memory blue, the rest grey or violet.
COLORS = {
    "wait for work": "#e8e8e8",
    "wait for Q": "#d9e2ec",
    "wait for K, V": "#c6d4e3",
    "wait for turn": "#d5cfe6",
    "wait for S": "#cfe8cf",
    "wait for O": "#a9d8b4",
    "issue products": "#1b7837",
    "options, mask": "#b2182b",
    "online softmax": "#ef6548",
    "shifted softmax": "#fdae61",
    "rescale O": "#8c510a",
    "pack P": "#fee08b",
    "pass over blocks": "#9970ab",
    "store": "#2166ac",
    "test if lost": "#40004b",
    "release": "#636363",
    "wait for room": "#eeeeee",
    "copy K": "#4393c3",
    "copy Q": "#053061",
    "copy V": "#92c5de",
    "find tile": "#969696",
}


class Stretch(NamedTuple):
    """What one role does from `start` to `end`, in clocks."""

    start: int
    end: int
    what: str


def stretches(row: dict[str, Any], names: list[str]) -> list[Stretch]:
    """A mark begins a span and the next one ends it, so the last one is none."""
    marks = row["marks"]
    return [
        Stretch(start, end, names[span]) for (start, span), (end, _) in itertools.pairwise(marks)
    ]


def window(document: dict[str, Any], first: int, tiles: int) -> tuple[int, int]:
    """Clocks of these tiles of the first warpgroup: a tile ends with its release."""
    spans = stretches(document["rows"][0], document["spans"])
    ends = [0, *(span.end for span in spans if span.what == "release")]
    if first < 0 or tiles < 1 or first + tiles >= len(ends):
        raise SystemExit(f"tiles {first} to {first + tiles - 1}: the marks hold {len(ends) - 1}")
    return ends[first], ends[first + tiles]


def within(spans: list[Stretch], start: int, end: int) -> list[Stretch]:
    """Their parts between two clocks."""
    cut = (Stretch(max(s.start, start), min(s.end, end), s.what) for s in spans)
    return [span for span in cut if span.end > span.start]


def clocks_of(document: dict[str, Any], start: int, end: int) -> dict[str, dict[str, int]]:
    """Role -> what -> clocks between two clocks, the most first."""
    table = {}
    for row in document["rows"]:
        sums: dict[str, int] = defaultdict(int)
        for span in within(stretches(row, document["spans"]), start, end):
            sums[span.what] += span.end - span.start
        table[row["name"]] = dict(sorted(sums.items(), key=lambda item: -item[1]))
    return table


def draw(document: dict[str, Any], start: int, end: int, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import patches, pyplot

    rows = document["rows"]
    figure, axis = pyplot.subplots(figsize=(15, 1.6 + 0.7 * len(rows)), constrained_layout=True)
    seen = set()
    for at, row in enumerate(rows):
        by_what: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for span in within(stretches(row, document["spans"]), start, end):
            by_what[span.what].append((span.start - start, span.end - span.start))
            if span.what == "release":
                axis.plot([span.end - start] * 2, [at - 0.5, at + 0.5], color="black", linewidth=1)
        for what, bars in by_what.items():
            axis.broken_barh(bars, (at - 0.4, 0.8), facecolors=COLORS[what])
        seen |= by_what.keys()
    axis.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axis.invert_yaxis()
    axis.set_xlim(0, end - start)
    axis.set_xlabel("clocks (black: the end of a tile)")
    causal = "causal" if document["causal"] else "no mask"
    axis.set_title(f"{document['kernel']}, s {document['seqlen']}, {causal}", fontsize="medium")
    figure.legend(
        handles=[patches.Patch(color=COLORS[what], label=what) for what in COLORS if what in seen],
        loc="outside lower center",
        ncols=8,
        fontsize="small",
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("marks", type=Path)
    parser.add_argument("picture", type=Path, nargs="?")
    parser.add_argument("--first-tile", type=int, default=3, help="0 is the block's first")
    parser.add_argument("--tiles", type=int, default=2)
    options = parser.parse_args(arguments)
    document = json.loads(options.marks.read_text())
    start, end = window(document, options.first_tile, options.tiles)
    if options.picture is not None:
        draw(document, start, end, options.picture)
    print(f"{(end - start) / options.tiles:.0f} clocks a tile")
    for role, sums in clocks_of(document, start, end).items():
        parts = ", ".join(f"{what} {clocks / options.tiles:.0f}" for what, clocks in sums.items())
        print(f"{role}: {parts}")


if __name__ == "__main__":
    main()
