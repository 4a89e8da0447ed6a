# SPDX-License-Identifier: Apache-2.0
"""`onchip tune`: times the tiles that a build offers, and writes the planner's rows."""

import datetime
import json
import re
import statistics
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

import onchip
from onchip.cli.bench import environment, results

GAIN = 1.01  # of a row over the planned one, in the geometric mean of its cells


def cells(lines: list[str]) -> list[dict[str, Any]]:
    """What onchip_tune printed, with the median of each kernel's samples."""
    found = [json.loads(line) for line in lines if line.strip()]
    for cell in found:
        cell["median"] = statistics.median(cell["seconds"])
    return found


def by_shape(found: list[dict[str, Any]]) -> dict[tuple[int, int, bool], dict[int, list[Any]]]:
    """(D, Dv, causal) -> sequence length -> kernels, the fastest first."""
    table: dict[tuple[int, int, bool], dict[int, list[Any]]] = {}
    for cell in found:
        shape = (cell["dim"], cell["dim_v"], cell["causal"])
        table.setdefault(shape, {}).setdefault(cell["seqlen"], []).append(cell)
    for lengths in table.values():
        for kernels in lengths.values():
            kernels.sort(key=lambda kernel: kernel["median"])
    return table


def planned(kernels: list[Any]) -> Any:
    return next(kernel for kernel in kernels if kernel["planned"])


def suffix(kernel: str) -> str:
    """What tells a kernel's name from that of the first row of its head dimensions."""
    return re.sub(r"^sm90_fwd_[a-z]+16_d\d+(_\d+)?", "", kernel)


def row(cell: dict[str, Any], keys: int) -> str:
    """A row of kTiles in cpp/src/host/tiles.hpp, for sequences from `keys` on."""
    mask = "kCausal" if cell["causal"] else "kDense"
    q, k, v = cell["buffers"]
    fields = [
        "kSm90", "kFwd", 2, cell["dim"], cell["dim_v"], mask, cell["tile_q"], cell["tile_k"],
        k, cell["warps"], 0, 0, 0, 0, f'"{suffix(cell["kernel"])}"', q, 1, keys, v,
    ]  # fmt: skip
    return "TileRow{" + ", ".join(str(field) for field in fields) + "},"


def rows(found: list[dict[str, Any]]) -> list[str]:
    """For each shape the fastest kernel by sequence length, neighbours of one kernel as one row.

    The longest first, as the table is read: the first row that serves is taken.
    """
    text = []
    for lengths in by_shape(found).values():
        runs: list[list[Any]] = []
        for length in sorted(lengths):
            plan = planned(lengths[length])
            best = lengths[length][0]
            if plan["median"] / best["median"] < GAIN:
                best = plan
            gain = plan["median"] / best["median"]
            if runs and runs[-1][0]["kernel"] == best["kernel"]:
                runs[-1][2].append((length, gain))
            else:
                runs.append([best, length, [(length, gain)]])
        for best, first, gains in reversed(runs):
            mean = statistics.geometric_mean(gain for _, gain in gains)
            last = gains[-1][0]
            keys = 0 if first == min(lengths) else first
            text.append(f"{row(best, keys)}  // s {first} to {last}: {mean:.3f}x what is planned")
    return text


def tune(
    tool: Annotated[Path, typer.Argument(help="onchip_tune of a build with ONCHIP_TUNE=ON.")],
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each kernel in each cell.")] = 7,
    out: Annotated[
        Path | None, typer.Option(help="JSON; default benchmarks/results/tune/<gpu>.json.")
    ] = None,
) -> None:
    """Time candidate tiles of the Hopper forward kernels on this GPU (for developers)."""
    device = onchip.device_info("cuda")
    root = environment.repository_root(Path(__file__).resolve())
    if out is None:
        if root is None:
            raise typer.BadParameter("--out: needed outside of a checkout")
        name = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
        out = results.folder(root) / "tune" / f"{name}.json"
    done = subprocess.run([tool, str(rounds)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise typer.Exit(done.returncode)
    found = cells(done.stdout.splitlines())
    document: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": environment.commit(root),
        "device": device.name,
        "rounds": rounds,
        "rows": rows(found),
        "cells": found,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(results.as_text(document))
    print("\n".join(document["rows"]))
    print(f"Wrote {out}")
