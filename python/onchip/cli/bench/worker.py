# SPDX-License-Identifier: Apache-2.0
"""The measuring process: reads a `Spec` as JSON on stdin, writes one JSON event a line on stdout.

A process of its own, because instruction sets and thread counts are settled when NumPy, torch and
onchip are imported. It does nothing but measure.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TextIO

from onchip.cli.bench.cells import Cell
from onchip.cli.bench.provider import UnavailableError


@dataclass(frozen=True)
class Spec:
    device: str  # "cpu" or "cuda"
    cells: list[Cell]
    providers: list[str]
    threads: int
    rounds: int  # turns each provider gets
    min_rounds: int  # turns it gets however slow a cell is
    cell_seconds: float  # no new round after this
    sample_seconds: float  # a sample is as many calls as take this long
    gemm_size: int = 2048  # of the CPU's matrix product

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Spec":
        fields = json.loads(text)
        return Spec(**fields | {"cells": [Cell(**cell) for cell in fields["cells"]]})


class Session(Protocol):
    """The providers of one device, and how a cell is measured there."""

    def facts(self) -> dict[str, Any]:
        """Fields of the document, among them "providers"."""
        ...

    def measure(self, cell: Cell) -> dict[str, Any]: ...

    def extras(self) -> dict[str, Any]:
        """Further fields of the document, measured after the cells."""
        ...


def open_session(spec: Spec) -> Session:
    # Only what is measured is imported: torch takes seconds.
    if spec.device == "cpu":
        from onchip.cli.bench.cpu.session import CpuSession

        return CpuSession(spec)
    from onchip.cli.bench.gpu.meter import CudaMeter
    from onchip.cli.bench.gpu.session import GpuSession

    return GpuSession(spec, CudaMeter())


def run(spec: Spec, events: TextIO) -> None:
    def emit(event: str, fields: dict[str, Any]) -> None:
        events.write(json.dumps({"event": event, "fields": fields}) + "\n")
        events.flush()

    session = open_session(spec)
    emit("start", session.facts())
    for cell in spec.cells:
        emit("cell", session.measure(cell))
    emit("end", session.extras())


def main() -> None:
    # Whatever a library prints goes to stderr; only events go to the parent.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        run(Spec.from_json(sys.stdin.read()), events)
    except UnavailableError as error:
        raise SystemExit(f"onchip bench: {error}") from error


if __name__ == "__main__":
    main()
