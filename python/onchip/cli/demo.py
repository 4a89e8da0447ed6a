# SPDX-License-Identifier: Apache-2.0
"""`onchip demo`: attention, forward and backward, on a text; checked, timed and weighed."""

import importlib.util
import time
from typing import Annotated, NamedTuple

import numpy as np
import typer
from rich.table import Table

import onchip
from onchip.cli import cuda, memory, unfused
from onchip.cli._console import (
    EXIT_FAILED,
    console,
    fail,
    format_bytes,
    format_seconds,
    library_errors,
    verdict,
)
from onchip.cli.bench.cells import DTYPES
from onchip.cli.bench.cpu.bars import MAX_MEMORY_SHARE
from onchip.cli.bench.cpu.tensors import numpy_dtype
from onchip.cli.places import Cost, HostPlace, Place, TorchPlace
from onchip.cli.text_input import loss_gradient, make_problem

Array = unfused.Array
NAMES = ("out", "lse", "dq", "dk", "dv")
LONG_WINDOW = (256, 0)


class Results(NamedTuple):
    out: Array
    lse: Array
    dq: Array
    dk: Array
    dv: Array


class LongSequence(NamedTuple):
    planned: memory.Memory  # with every key visible
    run: memory.Memory  # planned for what was run
    grown_bytes: int | None
    seconds: float


def choose_place(device: str) -> Place:
    """`auto` is a GPU where the CUDA backend sees one and torch is there to bring arrays to it."""
    if device not in ("auto", "cpu", "cuda"):
        fail(f"--device: {device} is not one of auto, cpu, cuda")
    if device == "cpu":
        return HostPlace()
    error = cuda.state().error
    if error is None and importlib.util.find_spec("torch") is None:
        error = "arrays on a GPU need torch: pip install torch"
    if error is None:
        return TorchPlace()
    if device == "cuda":
        fail(f"--device: {error}")
    return HostPlace()


def run_onchip(
    place: Place, dout: Array, q: Array, k: Array, v: Array, repeats: int
) -> tuple[Results, Cost]:
    dout, q, k, v = (place.put(x) for x in (dout, q, k, v))

    def both() -> tuple[Array, ...]:
        out, lse = onchip.attention(q, k, v, causal=True, return_lse=True)
        return (out, lse, *onchip.attention_backward(dout, q, k, v, out, lse, causal=True))

    results, peak = place.weigh(both)
    out, lse = results[:2]
    forward = place.seconds(
        lambda: onchip.attention(q, k, v, causal=True, return_lse=True), repeats
    )
    backward = place.seconds(
        lambda: onchip.attention_backward(dout, q, k, v, out, lse, causal=True), repeats
    )
    return Results(*(place.back(x) for x in results)), Cost(forward, backward, peak)


def run_unfused(dout: Array, q: Array, k: Array, v: Array) -> tuple[Results, Cost]:
    """NumPy, in float32, with what is stored rounded to the inputs' dtype."""
    narrow = q.dtype if q.dtype.itemsize == 2 else None
    dout, q, k, v = (x.astype(np.float32, copy=False) for x in (dout, q, k, v))
    times = []

    def both() -> Results:
        times.append(time.perf_counter())
        saved = unfused.forward(q, k, v, causal=True, round_to=narrow)
        times.append(time.perf_counter())
        gradients = unfused.backward(dout, q, k, v, saved, round_to=narrow)
        times.append(time.perf_counter())
        return Results(saved.out, saved.lse, *gradients)

    results, peak = memory.peak_growth(both)
    if narrow is not None:
        out, lse, *gradients = results
        results = Results(out.astype(narrow), lse, *(x.astype(narrow) for x in gradients))
    return results, Cost(times[1] - times[0], times[2] - times[1], peak)


def run_float64(dout: Array, q: Array, k: Array, v: Array) -> Results:
    """Head by head, so that the score matrices of all heads need not fit."""
    group = q.shape[2] // k.shape[2]
    parts = []
    for head in range(q.shape[2]):
        own, shared = slice(head, head + 1), slice(head // group, head // group + 1)
        dout1, q1, k1, v1 = (
            x[:, :, where].astype(np.float64)
            for x, where in ((dout, own), (q, own), (k, shared), (v, shared))
        )
        saved = unfused.forward(q1, k1, v1, causal=True)
        parts.append((saved.out, saved.lse, *unfused.backward(dout1, q1, k1, v1, saved)))
    out, lse, dq, dk, dv = zip(*parts, strict=True)

    def summed(gradients: tuple[Array, ...]) -> Array:
        return np.concatenate(
            [sum(gradients[i : i + group]) for i in range(0, len(gradients), group)], axis=2
        )

    return Results(
        np.concatenate(out, axis=2),
        np.concatenate(lse, axis=1),
        np.concatenate(dq, axis=2),
        summed(dk),
        summed(dv),
    )


def _error(x: Array, y: Array) -> float:
    return float(np.max(np.abs(x.astype(np.float64) - y)))


def error_rows(
    exact: Results, ours: Results, naive: Results
) -> list[tuple[str, float, float, float]]:
    """(name, our error, the unfused computation's, what is allowed) of each result."""
    rows = []
    for name, x, y, z in zip(NAMES, ours, naive, exact, strict=True):
        theirs = _error(y, z)
        rows.append((name, _error(x, z), theirs, 1e-4 if name == "lse" else 2 * theirs + 1e-5))
    return rows


def weigh_long_sequence(place: Place, full: bool) -> LongSequence:
    """One head over LONG_SEQLEN tokens, forward and backward, in the place's own dtype.

    A short window runs through the same buffers in a moment; `full` computes every score.
    """
    window = (-1, -1) if full else LONG_WINDOW
    shape = (1, memory.LONG_SEQLEN, 1, memory.LONG_DIM)
    rng = np.random.default_rng(0)
    q, k, v, dout = (
        place.put(rng.standard_normal(shape, np.float32).astype(place.dtype)) for _ in range(4)
    )

    def both() -> None:
        out, lse = onchip.attention(q, k, v, window=window, return_lse=True)
        onchip.attention_backward(dout, q, k, v, out, lse, window=window)

    start = time.perf_counter()
    _, grown = place.weigh(both)
    seconds = time.perf_counter() - start
    planned, run = (
        memory.long_sequence_memory(place.dtype, device=place.device, window=x)
        for x in ((-1, -1), window)
    )
    return LongSequence(planned, run, grown, seconds)


def _warm_up(place: Place) -> None:
    """Starts the threads, or the GPU, so that their memory does not count as the computation's."""
    x = place.put(np.ones((1, 64, 1, 16), np.float32))
    out, lse = onchip.attention(x, x, x, return_lse=True)
    onchip.attention_backward(x, x, x, x, out, lse)


def demo(
    seqlen: Annotated[int, typer.Option(min=1, help="Characters of the text.")] = 4096,
    heads: Annotated[int, typer.Option(min=1)] = 4,
    heads_kv: Annotated[int, typer.Option(min=1)] = 2,
    dim: Annotated[int, typer.Option(min=1)] = 64,
    dtype: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(DTYPES)}; default: float32, on a GPU float16."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")
    ] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of onchip.")] = 3,
    long: Annotated[bool, typer.Option(help=f"Also weigh {memory.LONG_SEQLEN} tokens.")] = True,
    full: Annotated[
        bool,
        typer.Option("--full", help="Run those without a window: up to a minute on two cores."),
    ] = False,
) -> None:
    """Runs attention forward and backward on a text, and checks it against float64.

    The exit code is 1 where a result or the memory is not within its bound.
    """
    if dtype is not None and dtype not in DTYPES:
        fail(f"--dtype: {dtype} is not one of {', '.join(DTYPES)}")
    if heads % heads_kv:
        fail(f"--heads-kv: {heads_kv} does not divide --heads {heads}")
    started = time.perf_counter()
    place = choose_place(device)
    dtype = dtype or place.dtype
    out = console()
    out.print(f"[bold]onchip {onchip.__version__}[/], {place.label}")
    problem = make_problem(seqlen, heads, heads_kv, dim)
    with library_errors():
        q, k, v = (x.astype(numpy_dtype(dtype)) for x in (problem.q, problem.k, problem.v))
        _warm_up(place)
        heavy = weigh_long_sequence(place, full) if long else None
        first = onchip.attention(*(place.put(x) for x in (q, k, v)), causal=True)
        loss, gradient = loss_gradient(problem, place.back(first))
        inputs = (gradient.astype(q.dtype), q, k, v)
        results, ours = run_onchip(place, *inputs, repeats)
        on_device = place.unfused(*inputs)
        planned = memory.planned_memory(q.shape, k.shape, dtype, causal=True, device=place.device)
    naive_results, on_host = run_unfused(*inputs)
    rows = error_rows(run_float64(*inputs), results, naive_results)
    out.print(
        f"Causal self-attention over {seqlen} characters of this program's own source: {heads} "
        f"heads, {heads_kv} key heads, d = {dim}, {dtype}.\nBackward from the loss of the next "
        f"character ({loss:.3f} nats, untrained)."
    )
    out.print(_error_table(rows))
    out.print(_cost_table(place.peer, ours, on_device or on_host, planned))
    passed = all(error <= bound for _, error, _, bound in rows)
    if heavy is not None:
        passed &= _print_long(heavy)
    took = format_seconds(time.perf_counter() - started)
    out.print(f"{verdict(passed)}: attention, forward and backward, against float64, in {took}")
    if not passed:
        raise typer.Exit(EXIT_FAILED)


def _error_table(rows: list[tuple[str, float, float, float]]) -> Table:
    table = Table(title="Largest error against float64")
    for name in ("", "onchip", "unfused", "allowed"):
        table.add_column(name, justify="right" if name else "left")
    table.add_column("")
    for name, error, theirs, bound in rows:
        table.add_row(
            name, f"{error:.2e}", f"{theirs:.2e}", f"{bound:.2e}", verdict(error <= bound)
        )
    return table


def _cost_table(peer: str, ours: Cost, naive: Cost, planned: memory.Memory) -> Table:
    def grown(cost: Cost) -> str:
        return "not measured" if cost.peak_bytes is None else format_bytes(cost.peak_bytes)

    table = Table(title=f"Time and memory beside the unfused computation ({peer})")
    for name in ("", "onchip", "unfused", "ratio"):
        table.add_column(name, justify="right" if name else "left")
    for name, mine, theirs in (
        ("forward", ours.forward_seconds, naive.forward_seconds),
        ("backward", ours.backward_seconds, naive.backward_seconds),
    ):
        table.add_row(
            name, format_seconds(mine), format_seconds(theirs), f"{theirs / mine:.1f}x faster"
        )
    own = planned.workspace_bytes + planned.output_bytes
    # At the least: P and dS stand side by side in the backward pass, in float32.
    standard = planned.output_bytes + 2 * planned.score_bytes
    table.add_row(
        "memory, computed", format_bytes(own), format_bytes(standard), f"{standard / own:.1f}x less"
    )
    ratio = ""
    if ours.peak_bytes and naive.peak_bytes:
        ratio = f"{naive.peak_bytes / ours.peak_bytes:.1f}x less"
    table.add_row("memory, measured growth", grown(ours), grown(naive), ratio)
    return table


def _print_long(long: LongSequence) -> bool:
    """Prints the memory check of the long sequence; returns whether it passes."""
    planned, scores = long.planned, long.planned.score_bytes
    rows = [
        ("an N x N float32 matrix", scores),
        ("planned: workspace", planned.workspace_bytes),
        ("planned: out, lse, dq, dk, dv", planned.output_bytes),
        ("planned: both", planned.workspace_bytes + planned.output_bytes),
    ]
    passed = planned.share < MAX_MEMORY_SHARE
    if long.grown_bytes is not None:
        same = long.run.workspace_bytes == planned.workspace_bytes
        what = "same workspace" if same else f"workspace {format_bytes(long.run.workspace_bytes)}"
        rows.append((f"measured growth ({what})", long.grown_bytes))
        passed &= long.grown_bytes / scores < MAX_MEMORY_SHARE
    table = Table(
        title=f"Memory of one head over {memory.LONG_SEQLEN} tokens, d = {memory.LONG_DIM}, "
        "forward + backward"
    )
    table.add_column("")
    table.add_column("bytes", justify="right")
    table.add_column("of N x N", justify="right")
    for name, count in rows:
        table.add_row(name, format_bytes(count), f"{count / scores:.2%}")
    out = console()
    out.print(table)
    out.print(f"under {MAX_MEMORY_SHARE:.0%}: {verdict(passed)} (run in "
              f"{format_seconds(long.seconds)})")  # fmt: skip
    return passed
