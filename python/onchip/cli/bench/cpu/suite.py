# SPDX-License-Identifier: Apache-2.0
import itertools
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, ClassVar

from rich.table import Table

from onchip.cli.bench import environment
from onchip.cli.bench.bars import Bar, summarise
from onchip.cli.bench.cells import DTYPES, Cell
from onchip.cli.bench.cpu import bars, report
from onchip.cli.bench.cpu.plot import save_rates
from onchip.cli.bench.cpu.providers import PROVIDERS
from onchip.cli.bench.report import markdown_bars, markdown_summary, provider_lines, summary_table
from onchip.cli.bench.suite import Figure, Options, Suite, chosen, default_spec
from onchip.cli.bench.worker import Spec
from onchip.cli.memory import long_sequence_memory

PASSES = ("forward", "backward")
BY = ("direction", "dtype")


def grid(
    directions: Iterable[str],
    dtypes: Iterable[str],
    dims: Iterable[int],
    *,
    seqlens: Iterable[int] = (2048,),
    heads: int = 8,
    batch: int = 1,
) -> list[Cell]:
    return [
        Cell(direction, dtype, dim, causal, seqlen, heads, batch)
        for direction, dtype, seqlen, dim, causal in itertools.product(
            directions, dtypes, seqlens, dims, (False, True)
        )
    ]


class CpuSuite(Suite):
    device: ClassVar[str] = "cpu"
    passes: ClassVar[tuple[str, ...]] = PASSES
    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    providers: ClassVar[tuple[str, ...]] = tuple(PROVIDERS)
    figures: ClassVar[dict[str, Figure]] = {"": save_rates}

    def spec(self, options: Options) -> Spec:
        quick, seconds = options.quick, options.cell_seconds or 30.0
        return Spec(
            cells=grid(
                chosen(self.passes, options.passes),
                chosen(self.dtypes, options.dtypes),
                options.dims or bars.PROTOCOL_DIMS,
                seqlens=options.seqlens or [512 if quick else 2048],
                heads=options.heads or 8,
                batch=options.batch or 1,
            ),
            min_rounds=1 if quick else 3,
            cell_seconds=min(seconds, 2.0) if quick else seconds,
            sample_seconds=0.005 if quick else 0.05,
            gemm_size=512 if quick else 2048,
            **default_spec(self, options),
        )

    def variables(self, options: Options) -> dict[str, str]:
        return environment.variables(options.threads, options.isa)

    def facts(self, options: Options) -> dict[str, Any]:
        return {
            "benchmark": "cpu",
            "threads": options.threads,
            "isa": options.isa,
            "environment": self.variables(options),
        }

    def file_name(self, spec: Spec, options: Options) -> str | None:
        whole = spec.providers == list(self.providers) and spec.cells == grid(
            PASSES, DTYPES, bars.PROTOCOL_DIMS
        )
        cpu = re.sub(r"[^a-z0-9]+", "-", environment.cpu_model().lower()).strip("-")
        return f"cpu-{cpu}-{options.isa}-{options.threads}t" if whole else None

    def summary(self, document: dict[str, Any]) -> dict[str, Any]:
        return {"summary": self._rows(document), "memory": asdict(long_sequence_memory())}

    def evaluate(self, document: dict[str, Any]) -> list[Bar]:
        return bars.evaluate(document)

    def heading(self, document: dict[str, Any]) -> str:
        return report.heading(document)

    def tables(self, document: dict[str, Any]) -> list[Table]:
        tables = [report.cells_table(document)]
        if rows := self._rows(document):
            tables.append(summary_table(rows, BY))
        return tables

    def section(self, document: dict[str, Any]) -> str:
        first = document["cells"][0]
        return (
            f"{report.heading(document)}; sources {document['commit']}. Batch {first['batch']}, "
            f"{first['heads']} heads, sequence length {first['seqlen']}.\n\n"
            + "".join(f"- {line}\n" for line in provider_lines(document))
            + f"\n{markdown_bars(bars.evaluate(document))}"
            + "\nTimes of the peers over that of onchip, above 1 is faster:\n\n"
            + markdown_summary(self._rows(document), BY)
            + f"\n{report.markdown_cells(document)}"
        )

    def _rows(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        peers = (name for name in document["providers"] if name != "onchip")
        return [row for name in peers for row in summarise(document["cells"], name, BY)]
