# SPDX-License-Identifier: Apache-2.0
import re
from typing import Any, ClassVar

from rich.table import Table

import onchip
from onchip.cli import probes
from onchip.cli.bench.bars import Bar, summarise
from onchip.cli.bench.cells import distinct
from onchip.cli.bench.gpu import bars, plot, report
from onchip.cli.bench.gpu.grid import DIMS, DTYPES, PASSES, SEQLENS, TOKENS, grid
from onchip.cli.bench.gpu.providers import PROVIDERS
from onchip.cli.bench.report import markdown_bars, markdown_summary, provider_lines, summary_table
from onchip.cli.bench.suite import Figure, Options, Suite, chosen, default_spec
from onchip.cli.bench.worker import Spec

BY_DIM = ("direction", "dtype", "dim")
MIN_ROUNDS = 5


class GpuSuite(Suite):
    device: ClassVar[str] = "cuda"
    passes: ClassVar[tuple[str, ...]] = PASSES
    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    providers: ClassVar[tuple[str, ...]] = tuple(PROVIDERS)
    figures: ClassVar[dict[str, Figure]] = {
        "speed": plot.save_speed,
        "memory": plot.save_memory,
        "roofline": plot.save_roofline,
    }

    def spec(self, options: Options) -> Spec:
        quick = options.quick
        return Spec(
            cells=grid(
                chosen(self.passes, options.passes),
                chosen(self.dtypes, options.dtypes),
                options.dims or DIMS,
                options.seqlens or ((512, 2048) if quick else SEQLENS),
                tokens=4096 if quick else TOKENS,
                heads=options.heads,
                batch=options.batch,
            ),
            min_rounds=1 if quick else min(MIN_ROUNDS, options.rounds),
            cell_seconds=options.cell_seconds or 3.0,
            sample_seconds=0.002 if quick else 0.01,
            **default_spec(self, options),
        )

    def variables(self, options: Options) -> dict[str, str]:
        return {}

    def facts(self, options: Options) -> dict[str, Any]:
        gpus = probes.nvidia_gpus()
        driver = gpus[0].driver_version if gpus else "unknown"
        return {"benchmark": "cuda", "driver": driver, "cuda": probes.cuda_driver().cuda_version}

    def file_name(self, spec: Spec, options: Options) -> str | None:
        dtypes = list(dict.fromkeys(cell.dtype for cell in spec.cells))
        whole = {"onchip", bars.PEER} <= set(spec.providers) and spec.cells == grid(dtypes=dtypes)
        if not whole:
            return None
        name = onchip.device_info("cuda").name.lower()
        return "-".join(["gpu", re.sub(r"[^a-z0-9]+", "-", name).strip("-"), *dtypes])

    def summary(self, document: dict[str, Any]) -> dict[str, Any]:
        return {"summary": self._rows(document)}

    def evaluate(self, document: dict[str, Any]) -> list[Bar]:
        return bars.evaluate(document)

    def heading(self, document: dict[str, Any]) -> str:
        return report.heading(document)

    def tables(self, document: dict[str, Any]) -> list[Table]:
        tables = [report.cells_table(document)]
        if rows := self._rows(document):
            tables.append(summary_table(rows, BY_DIM))
        return tables

    def section(self, document: dict[str, Any]) -> str:
        kernels = "".join(f"- {line}\n" for line in report.kernel_lines(document))
        return (
            f"{report.heading(document)}; sources {document['commit']}.\n\n"
            + "".join(f"- {line}\n" for line in provider_lines(document))
            + f"\n{markdown_bars(bars.evaluate(document))}"
            + "\nTimes of the peers over that of onchip, above 1 is faster:\n\n"
            + markdown_summary(self._rows(document), BY_DIM)
            + f"\n{report.markdown_rates(document)}"
            + report.markdown_scores(document)
            + f"\n### Memory\n\n{report.markdown_memory(document)}"
            + f"\n### Kernels\n\n{kernels}"
        )

    def _rows(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        """By head dimension, then of all of them."""
        cells = document["cells"]
        several = len(distinct(cells, "dim")) > 1
        return [
            row
            for name in report.peer_names(document)
            for by in ((BY_DIM, BY_DIM[:2]) if several else (BY_DIM,))
            for row in summarise(cells, name, by)
        ]
