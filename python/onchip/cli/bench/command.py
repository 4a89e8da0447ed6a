# SPDX-License-Identifier: Apache-2.0
"""`onchip bench`."""

import datetime
import json
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from onchip.cli._console import EXIT_FAILED, console, fail
from onchip.cli.bench import bars, environment, report
from onchip.cli.bench.cells import DTYPES, PASSES, grid
from onchip.cli.bench.providers import PROVIDERS
from onchip.cli.bench.runner import WorkerError, run_worker
from onchip.cli.bench.worker import Spec
from onchip.cli.memory import long_sequence_memory


def _choices(name: str, values: list[str], known: tuple[str, ...]) -> list[str]:
    for value in values:
        if value not in known:
            fail(f"--{name}: {value} is not one of {', '.join(known)}")
    return [value for value in known if value in values] or list(known)


def bench(
    dims: Annotated[list[int] | None, typer.Option("--dim", help="Head dims.")] = None,
    dtypes: Annotated[list[str] | None, typer.Option("--dtype", help=", ".join(DTYPES))] = None,
    directions: Annotated[
        list[str] | None, typer.Option("--pass", help=" and ".join(PASSES))
    ] = None,
    providers: Annotated[
        list[str] | None, typer.Option("--provider", help=", ".join(PROVIDERS))
    ] = None,
    seqlen: Annotated[int | None, typer.Option(min=1, help="Default 2048; 512 if quick.")] = None,
    heads: Annotated[int, typer.Option(min=1)] = 8,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    threads: Annotated[int, typer.Option(min=1, help="For every provider.")] = 2,
    isa: Annotated[
        str, typer.Option(help="avx2 holds every provider to AVX2; native to nothing.")
    ] = "native",
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each provider.")] = 7,
    cell_seconds: Annotated[
        float, typer.Option(help="Starts no new round of a cell after this, from the third on.")
    ] = 30.0,
    quick: Annotated[bool, typer.Option("--quick", help="Short sequences, few rounds.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Judges the bars; exit code 1 unless all pass.")
    ] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Default: benchmarks/results/ of a checkout.")
    ] = None,
    plot_path: Annotated[Path | None, typer.Option("--plot", help="Writes a PNG.")] = None,
) -> None:
    """Measures onchip beside torch and NumPy, turn about, on the same tensors in one run."""
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
    document = _measure(spec, isa)
    out = console()
    report.print_facts(out, document)
    out.print(report.cells_table(document))
    out.print(report.summary_table(document["summary"]))
    judged = bars.evaluate(document)
    document["bars"] = [asdict(bar) for bar in judged]
    if check:
        out.print(report.bars_table(judged))
    _write(document, None if quick and json_path is None else json_path or _default_path(document))
    if plot_path is not None:
        _plot(document, plot_path)
    wrong = [
        f"{cell['direction']} {cell['dtype']} d={cell['dim']}"
        for cell in document["cells"]
        if not all(result["right"] for result in cell["results"].values())
    ]
    if wrong:
        fail("results differ from the unfused computation: " + ", ".join(wrong), EXIT_FAILED)
    if check and not all(bar.passed for bar in judged):
        raise typer.Exit(EXIT_FAILED)


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


def _default_path(document: dict[str, Any]) -> Path | None:
    root = environment.repository_root(Path.cwd())
    if root is None:
        return None
    cpu = re.sub(r"[^a-z0-9]+", "-", document["machine"]["cpu"].lower()).strip("-")
    name = f"cpu-{cpu}-{document['isa']}-{document['threads']}t.json"
    return root / "benchmarks" / "results" / name


def _write(document: dict[str, Any], path: Path | None) -> None:
    if path is None:
        return
    path.write_text(json.dumps(document, indent=1) + "\n")
    console().print(f"wrote {path}", soft_wrap=True)


def _plot(document: dict[str, Any], path: Path) -> None:
    try:
        from onchip.cli.bench.plot import save_plot

        save_plot(document, path)
    except ModuleNotFoundError as error:
        fail(f"--plot needs {error.name}: pip install {error.name}")
    console().print(f"wrote {path}", soft_wrap=True)
