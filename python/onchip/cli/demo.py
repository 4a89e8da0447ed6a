# SPDX-License-Identifier: Apache-2.0
"""`onchip demo`: attention, forward and backward, on a text; checked, timed and weighed."""

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.table import Table

import onchip
from onchip.cli import memory, unfused
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


class Timed(NamedTuple):
    results: Results
    forward_seconds: float
    backward_seconds: float
    grown_bytes: int | None  # greatest growth of the process, forward and backward


class LongSequence(NamedTuple):
    planned: memory.Memory  # with every key visible
    run: memory.Memory  # planned for what was run
    grown_bytes: int | None
    seconds: float


def _clock(call: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return result, statistics.median(times)


def run_onchip(q: Array, k: Array, v: Array, dout: Array, repeats: int) -> Timed:
    def both() -> Results:
        out, lse = onchip.attention(q, k, v, causal=True, return_lse=True)
        return Results(out, lse, *onchip.attention_backward(dout, q, k, v, out, lse, causal=True))

    results, grown = memory.peak_growth(both)
    out, lse = results.out, results.lse
    _, forward = _clock(
        lambda: onchip.attention(q, k, v, causal=True, return_lse=True), repeats
    )  # fmt: skip
    _, backward = _clock(
        lambda: onchip.attention_backward(dout, q, k, v, out, lse, causal=True), repeats
    )
    return Timed(results, forward, backward, grown)


def run_unfused(q: Array, k: Array, v: Array, dout: Array) -> Timed:
    """In float32, with what is stored rounded to the inputs' dtype."""
    narrow = q.dtype if q.dtype.itemsize == 2 else None
    q, k, v, dout = (x.astype(np.float32, copy=False) for x in (q, k, v, dout))
    times: dict[str, float] = {}

    def both() -> Results:
        saved, times["forward"] = _clock(
            lambda: unfused.forward(q, k, v, causal=True, round_to=narrow), 1
        )
        gradients, times["backward"] = _clock(
            lambda: unfused.backward(dout, q, k, v, saved, round_to=narrow), 1
        )
        return Results(saved.out, saved.lse, *gradients)

    results, grown = memory.peak_growth(both)
    if narrow is not None:
        out, lse, *gradients = results
        results = Results(
            out.astype(narrow), lse, *(gradient.astype(narrow) for gradient in gradients)
        )
    return Timed(results, times["forward"], times["backward"], grown)


def run_float64(q: Array, k: Array, v: Array, dout: Array) -> Results:
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


def weigh_long_sequence(full: bool) -> LongSequence:
    """One head over LONG_SEQLEN tokens, forward and backward.

    A short window runs through the same buffers in a moment; `full` computes every score.
    """
    window = (-1, -1) if full else LONG_WINDOW
    shape = (1, memory.LONG_SEQLEN, 1, memory.LONG_DIM)
    rng = np.random.default_rng(0)
    q, k, v, dout = (rng.standard_normal(shape, np.float32) for _ in range(4))

    def both() -> None:
        out, lse = onchip.attention(q, k, v, window=window, return_lse=True)
        onchip.attention_backward(dout, q, k, v, out, lse, window=window)

    start = time.perf_counter()
    _, grown = memory.peak_growth(both)
    seconds = time.perf_counter() - start
    planned, run = memory.long_sequence_memory(), memory.long_sequence_memory(window=window)
    return LongSequence(planned, run, grown, seconds)


def _warm_up() -> None:
    """Starts the threads, so that their stacks do not count as the computation's memory."""
    x = np.ones((1, 64, 1, 16), np.float32)
    out, lse = onchip.attention(x, x, x, return_lse=True)
    onchip.attention_backward(x, x, x, x, out, lse)


def demo(
    seqlen: Annotated[int, typer.Option(min=1, help="Characters of the text.")] = 4096,
    heads: Annotated[int, typer.Option(min=1)] = 4,
    heads_kv: Annotated[int, typer.Option(min=1)] = 2,
    dim: Annotated[int, typer.Option(min=1)] = 64,
    dtype: Annotated[str, typer.Option(help=", ".join(DTYPES))] = "float32",
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
    if dtype not in DTYPES:
        fail(f"--dtype: {dtype} is not one of {', '.join(DTYPES)}")
    if heads % heads_kv:
        fail(f"--heads-kv: {heads_kv} does not divide --heads {heads}")
    started = time.perf_counter()
    out = console()
    threads = onchip.num_threads()
    out.print(f"[bold]onchip {onchip.__version__}[/], {onchip.cpu_isa()}, {threads} threads")
    problem = make_problem(seqlen, heads, heads_kv, dim)
    with library_errors():
        q, k, v = (x.astype(numpy_dtype(dtype)) for x in (problem.q, problem.k, problem.v))
        _warm_up()
        heavy = weigh_long_sequence(full) if long else None
        loss, gradient = loss_gradient(problem, onchip.attention(q, k, v, causal=True))
        dout = gradient.astype(q.dtype)
        ours = run_onchip(q, k, v, dout, repeats)
    naive = run_unfused(q, k, v, dout)
    rows = error_rows(run_float64(q, k, v, dout), ours.results, naive.results)
    out.print(
        f"Causal self-attention over {seqlen} characters of this program's own source: {heads} "
        f"heads, {heads_kv} key heads, d = {dim}, {dtype}.\nBackward from the loss of the next "
        f"character ({loss:.3f} nats, untrained)."
    )
    out.print(_error_table(rows))
    out.print(_cost_table(ours, naive, memory.planned_memory(q.shape, k.shape, dtype, causal=True)))
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


def _cost_table(ours: Timed, naive: Timed, planned: memory.Memory) -> Table:
    def grown(timed: Timed) -> str:
        return "not measured" if timed.grown_bytes is None else format_bytes(timed.grown_bytes)

    table = Table(title="Time and memory beside the unfused computation (NumPy)")
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
    if ours.grown_bytes and naive.grown_bytes:
        ratio = f"{naive.grown_bytes / ours.grown_bytes:.1f}x less"
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
