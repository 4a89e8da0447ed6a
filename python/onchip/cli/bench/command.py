# SPDX-License-Identifier: Apache-2.0
"""`onchip bench`."""

import datetime
import importlib.util
import json
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from onchip.cli._console import EXIT_FAILED, console, fail
from onchip.cli.bench import bars, environment, plot, report
from onchip.cli.bench.cells import DTYPES, PASSES, Cell, grid
from onchip.cli.bench.providers import PROVIDERS
from onchip.cli.bench.runner import WorkerError, run_worker
from onchip.cli.bench.worker import Spec
from onchip.cli.memory import long_sequence_memory


def _choices(name: str, values: list[str], known: tuple[str, ...]) -> list[str]:
    for value in values:
        if value not in known:
            fail(f"--{name}: {value} is not one of {', '.join(known)}")
    return [value for value in known if value in values] or list(known)


Dims = Annotated[list[int] | None, typer.Option("--dim", min=1, help="Default: 64 and 128.")]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", help=", ".join(DTYPES))]
Passes = Annotated[list[str] | None, typer.Option("--pass", help=", ".join(PASSES))]
Providers = Annotated[list[str] | None, typer.Option("--provider", help=", ".join(PROVIDERS))]
Seqlen = Annotated[int | None, typer.Option(min=1, help="Default: 2048, or 512 if quick.")]
Count = Annotated[int, typer.Option(min=1)]
Threads = Annotated[int, typer.Option(min=1, help="For every provider.")]
Isa = Annotated[str, typer.Option(help="avx2 holds every provider to AVX2; native to nothing.")]
Rounds = Annotated[int, typer.Option(min=1, help="Samples of each provider.")]
CellSeconds = Annotated[
    float, typer.Option(help="No new round of a cell after this, from the fourth on.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Short sequences, few rounds.")]
Check = Annotated[
    bool, typer.Option("--check", help="Judge the bars; exit code 1 unless all pass.")
]
JsonPath = Annotated[
    Path | None,
    typer.Option("--json", help="Default for the whole grid: benchmarks/results/ of a checkout."),
]
PlotPath = Annotated[Path | None, typer.Option("--plot", help="A .png file to draw into.")]


def bench(
    dims: Dims = None,
    dtypes: Dtypes = None,
    directions: Passes = None,
    providers: Providers = None,
    seqlen: Seqlen = None,
    heads: Count = 8,
    batch: Count = 1,
    threads: Threads = 2,
    isa: Isa = "native",
    rounds: Rounds = 7,
    cell_seconds: CellSeconds = 30.0,
    quick: Quick = False,
    check: Check = False,
    json_path: JsonPath = None,
    plot_path: PlotPath = None,
) -> None:
    """Measures onchip beside torch and NumPy, turn about, on the same tensors in one run."""
    if plot_path is not None and plot_path.suffix != ".png":
        fail(f"--plot: {plot_path} does not end in .png")
    if isa not in environment.ISA_VARIABLES:
        fail(f"--isa: {isa} is not one of {', '.join(environment.ISA_VARIABLES)}")
    cells = grid(
        _choices("pass", directions or [], PASSES),
        _choices("dtype", dtypes or [], DTYPES),
        dims or [64, 128],
        seqlen=seqlen or (512 if quick else 2048),
        heads=heads,
        batch=batch,
    )
    spec = Spec(
        cells=cells,
        providers=_choices("provider", providers or [], tuple(PROVIDERS)),
        threads=threads,
        rounds=min(rounds, 3) if quick else rounds,
        min_rounds=1 if quick else 3,
        cell_seconds=min(cell_seconds, 2.0) if quick else cell_seconds,
        sample_seconds=0.005 if quick else 0.05,
        gemm_size=512 if quick else 2048,
    )
    path = json_path or (None if quick else _default_path(spec, isa))
    _check_outputs(path, plot_path)
    document = _measure(spec, isa)
    judged = bars.evaluate(document)
    document["bars"] = [asdict(bar) for bar in judged]
    _show(document, judged if check else [])
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")
        console().print(f"wrote {path}", soft_wrap=True)
    if plot_path is not None:
        plot.save_plot(document, plot_path)
        console().print(f"wrote {plot_path}", soft_wrap=True)
    wrong = [
        Cell.label_of(cell)
        for cell in document["cells"]
        if not all(result["right"] for result in cell["results"].values())
    ]
    if wrong:
        fail("results differ from the unfused computation: " + ", ".join(wrong), EXIT_FAILED)
    if check and not all(bar.passed for bar in judged):
        raise typer.Exit(EXIT_FAILED)


def _check_outputs(*paths: Path | None) -> None:
    """Finds out before the measurement what would keep its results from being written."""
    for path in paths:
        if path is None:
            continue
        if not path.parent.is_dir():
            fail(f"{path}: there is no folder {path.parent}")
        if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
            fail("--plot needs matplotlib: pip install matplotlib")


def _show(document: dict[str, Any], judged: list[bars.Bar]) -> None:
    out = console()
    report.print_facts(out, document)
    out.print(report.cells_table(document))
    if document["summary"]:
        out.print(report.summary_table(document["summary"]))
    if judged:
        out.print(report.bars_table(judged))


def _measure(spec: Spec, isa: str) -> dict[str, Any]:
    root = environment.repository_root(Path.cwd())
    document: dict[str, Any] = {
        "benchmark": "cpu",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": environment.commit(root),
        "machine": environment.machine_facts(),
        "threads": spec.threads,
        "isa": isa,
        "environment": environment.variables(spec.threads, isa),
        "rounds": spec.rounds,
    }
    started = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console(), transient=True) as progress:
        task = progress.add_task(spec.cells[0].label, total=len(spec.cells))

        def advance(record: dict[str, Any]) -> None:
            progress.advance(task)
            done = int(progress.tasks[0].completed)
            if done < len(spec.cells):
                progress.update(task, description=spec.cells[done].label)

        try:
            document["providers"], document["cells"] = run_worker(spec, isa, advance)
        except WorkerError as error:
            fail(str(error), EXIT_FAILED)
    document["seconds"] = round(time.perf_counter() - started, 1)
    document["summary"] = [
        row
        for name in document["providers"]
        if name != "onchip"
        for row in bars.summarise(document["cells"], name)
    ]
    document["memory"] = asdict(long_sequence_memory())
    return document


def _default_path(spec: Spec, isa: str) -> Path | None:
    """Where the results of the whole grid are kept in a checkout; other runs are not kept."""
    root = environment.repository_root(Path.cwd())
    whole = set(spec.providers) == set(PROVIDERS) and spec.cells == grid(
        PASSES, DTYPES, bars.PROTOCOL_DIMS, seqlen=2048, heads=8, batch=1
    )
    if root is None or not whole:
        return None
    cpu = re.sub(r"[^a-z0-9]+", "-", environment.cpu_model().lower()).strip("-")
    folder = root / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    return folder / f"cpu-{cpu}-{isa}-{spec.threads}t.json"
