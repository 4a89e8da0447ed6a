# SPDX-License-Identifier: Apache-2.0
"""`onchip bench`."""

import datetime
import importlib.util
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from onchip.cli import cuda
from onchip.cli._console import EXIT_FAILED, console, fail
from onchip.cli.bench import environment, page, report, results
from onchip.cli.bench.bars import Bar
from onchip.cli.bench.cells import label_of
from onchip.cli.bench.runner import WorkerError, run_worker
from onchip.cli.bench.suite import Options, Suite, figure_path
from onchip.cli.bench.suites import SUITES
from onchip.cli.bench.worker import Spec

Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")]
Dims = Annotated[
    list[int] | None, typer.Option("--dim", min=1, help="CPU: 64, 128; GPU: 64, 128, 256.")
]
Dtypes = Annotated[
    list[str] | None, typer.Option("--dtype", help="float32 (CPU only), bfloat16, float16.")
]
Passes = Annotated[
    list[str] | None, typer.Option("--pass", help="forward, backward; both (GPU only).")
]
Providers = Annotated[
    list[str] | None, typer.Option("--provider", help="All that can be imported. See --list.")
]
Seqlens = Annotated[
    list[int] | None, typer.Option("--seqlen", min=1, help="CPU: 2048; GPU: 512 to 16384.")
]
Heads = Annotated[
    int | None, typer.Option(min=1, help="CPU: 8; GPU: 2048 over the head dimension.")
]
Batch = Annotated[int | None, typer.Option(min=1, help="CPU: 1; GPU: 16384 over the length.")]
Threads = Annotated[int, typer.Option(min=1, help="Of the CPU, for every provider.")]
Isa = Annotated[str, typer.Option(help="avx2 holds every provider to AVX2; native to nothing.")]
Rounds = Annotated[int, typer.Option(min=1, help="Samples of each provider.")]
CellSeconds = Annotated[
    float | None,
    typer.Option(help="No new round of a cell after this, once there were a few."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Short sequences, few rounds.")]
Check = Annotated[
    bool, typer.Option("--check", help="Judge the bars; exit code 1 unless all pass.")
]
JsonPath = Annotated[
    Path | None,
    typer.Option("--json", help="Default for the whole grid: benchmarks/results/ of a checkout."),
]
PlotPath = Annotated[
    Path | None,
    typer.Option("--plot", help="A .png file; on a GPU three: -speed, -memory, -roofline."),
]
List = Annotated[bool, typer.Option("--list", help="List the providers and measure nothing.")]
Report = Annotated[
    bool,
    typer.Option("--report", help="Make docs/performance.md of benchmarks/results/, no more."),
]


def bench(
    device: Device = "auto",
    dims: Dims = None,
    dtypes: Dtypes = None,
    passes: Passes = None,
    providers: Providers = None,
    seqlens: Seqlens = None,
    heads: Heads = None,
    batch: Batch = None,
    threads: Threads = 2,
    isa: Isa = "native",
    rounds: Rounds = 7,
    cell_seconds: CellSeconds = None,
    quick: Quick = False,
    check: Check = False,
    json_path: JsonPath = None,
    plot_path: PlotPath = None,
    list_providers: List = False,
    make_report: Report = False,
) -> None:
    """Measures onchip beside its peers, turn about, on the same tensors in one run."""
    if make_report:
        _make_report()
        return
    suite = _suite(device)
    if list_providers:
        console().print("\n".join(suite.providers))
        return
    options = Options(
        dims=dims or [],
        dtypes=_known("dtype", dtypes, suite.dtypes),
        passes=_known("pass", passes, suite.passes),
        providers=_known("provider", providers, suite.providers),
        seqlens=seqlens or [],
        heads=heads,
        batch=batch,
        threads=threads,
        isa=isa,
        rounds=rounds,
        cell_seconds=cell_seconds,
        quick=quick,
    )
    if isa not in environment.ISA_VARIABLES:
        fail(f"--isa: {isa} is not one of {', '.join(environment.ISA_VARIABLES)}")
    if plot_path is not None and plot_path.suffix != ".png":
        fail(f"--plot: {plot_path} does not end in .png")
    spec = suite.spec(options)
    path = json_path or _default_path(suite, spec, options)
    _check_outputs(path, plot_path)
    document = _measure(suite, spec, options)
    judged = suite.evaluate(document)
    document["bars"] = [asdict(bar) for bar in judged]
    _show(suite, document, judged if check else [])
    _write(suite, document, path, plot_path)
    _exit_where_wrong(document, judged if check else [])


def _suite(device: str) -> Suite:
    if device not in ("auto", *SUITES):
        fail(f"--device: {device} is not one of auto, {', '.join(SUITES)}")
    if device == "auto":
        device = "cuda" if cuda.state().usable and importlib.util.find_spec("torch") else "cpu"
    elif device == "cuda" and (error := cuda.state().error):
        fail(f"--device: {error}")
    return SUITES[device]


def _known(name: str, values: list[str] | None, known: tuple[str, ...]) -> list[str]:
    for value in values or []:
        if value not in known:
            fail(f"--{name}: {value} is not one of {', '.join(known)}")
    return values or []


def _check_outputs(path: Path | None, plot_path: Path | None) -> None:
    """Finds out before the measurement what would keep its results from being written."""
    for output in (path, plot_path):
        if output is not None and not output.parent.is_dir():
            fail(f"{output}: there is no folder {output.parent}")
    if plot_path is not None and importlib.util.find_spec("matplotlib") is None:
        fail("--plot needs matplotlib: pip install matplotlib")


def _measure(suite: Suite, spec: Spec, options: Options) -> dict[str, Any]:
    document = suite.facts(options) | {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": environment.commit(environment.repository_root(Path.cwd())),
        "machine": environment.machine_facts(),
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
            document |= run_worker(spec, suite.variables(options), advance)
        except WorkerError as error:
            fail(str(error), EXIT_FAILED)
    document["seconds"] = round(time.perf_counter() - started, 1)
    return document | suite.summary(document)


def _default_path(suite: Suite, spec: Spec, options: Options) -> Path | None:
    """Where the results of the whole grid are kept in a checkout; other runs are not kept."""
    root = environment.repository_root(Path.cwd())
    name = None if options.quick else suite.file_name(spec, options)
    if root is None or name is None:
        return None
    results.folder(root).mkdir(exist_ok=True)
    return results.folder(root) / f"{name}.json"


def _show(suite: Suite, document: dict[str, Any], judged: list[Bar]) -> None:
    out = console()
    out.print(f"[bold]{suite.heading(document)}[/], measured in {document['seconds']:.0f} s")
    for line in report.provider_lines(document):
        out.print(f"  {line}", markup=False)
    for table in suite.tables(document):
        out.print(table)
    if judged:
        out.print(report.bars_table(judged))


def _write(
    suite: Suite, document: dict[str, Any], path: Path | None, plot_path: Path | None
) -> None:
    written = []
    if path is not None:
        path.write_text(results.as_text(document))
        written.append(path)
    if plot_path is not None:
        for ending, draw in suite.figures.items():
            written.append(figure_path(plot_path, ending))
            draw(document, written[-1])
    _say_written(written)


def _say_written(paths: list[Path]) -> None:
    for path in paths:
        console().print(f"wrote {path}", soft_wrap=True)


def _exit_where_wrong(document: dict[str, Any], judged: list[Bar]) -> None:
    wrong = [
        label_of(cell)
        for cell in document["cells"]
        if not all(result["right"] for result in cell["results"].values())
    ]
    if wrong:
        fail("results differ from the unfused computation: " + ", ".join(wrong), EXIT_FAILED)
    if not all(bar.passed for bar in judged):
        raise typer.Exit(EXIT_FAILED)


def _make_report() -> None:
    root = environment.repository_root(Path.cwd())
    if root is None:
        fail("--report: this is no checkout of onchip")
    if importlib.util.find_spec("matplotlib") is None:
        fail("--report needs matplotlib: pip install matplotlib")
    _say_written(page.save(root))
