# SPDX-License-Identifier: Apache-2.0
"""`onchip bench` on the CPU, and what it shares with that on a GPU."""

from __future__ import annotations

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner, Result

from onchip.cli.app import app
from onchip.cli.bench import command, environment, results, runner, worker
from onchip.cli.bench.bars import summarise
from onchip.cli.bench.cells import DTYPES, Cell
from onchip.cli.bench.cpu import bars
from onchip.cli.bench.cpu.suite import PASSES, CpuSuite, grid
from onchip.cli.bench.cpu.tensors import make_tensors, relative_error
from onchip.cli.bench.suite import Options


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["bench", "--device", "cpu", *map(str, arguments)])


def test_bench_quick(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results, picture = tmp_path / "r.json", tmp_path / "r.png"
    done = run(
        "--quick", "--seqlen", 96, "--heads", 2, "--dim", 16, "--dtype", "float32",
        "--isa", "avx2", "--json", results, "--plot", picture,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    document = json.loads(results.read_text())
    assert [(cell["direction"], cell["causal"]) for cell in document["cells"]] == [
        *itertools.product(PASSES, (False, True))
    ]
    for cell in document["cells"]:
        flops = 4 * 2 * 96**2 * 16 * (0.5 if cell["causal"] else 1)
        assert cell["flops"] == flops * (2.5 if cell["direction"] == "backward" else 1)
        assert (cell["gemm"] is not None) == (not cell["causal"])
        for name, result in cell["results"].items():
            assert result["right"], name
            assert len(result["seconds"]) >= 1
            assert min(result["seconds"]) <= result["median_seconds"] <= max(result["seconds"])
            assert result["gflops"] == pytest.approx(cell["flops"] / result["median_seconds"] / 1e9)
        assert {"onchip", "numpy"} <= set(cell["results"])
    assert document["isa"] == "avx2"
    assert document["environment"]["ONCHIP_CPU_ISA"] == "avx2"
    assert document["providers"]["onchip"]["isa"] in ("AVX2", "SSE4", "SSSE3", "SSE2")
    assert document["memory"]["share"] < 0.02
    assert len(document["bars"]) == len(bars.evaluate(document))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bench_check_fails_off_protocol(tmp_path: Path) -> None:
    done = run(
        "--quick", "--check", "--seqlen", 32, "--heads", 1, "--dim", 8, "--dtype",
        "float32", "--pass", "forward", "--provider", "onchip", "--json", tmp_path / "r.json",
    )  # fmt: skip
    assert done.exit_code == 1
    assert "FAIL" in done.output
    assert "not measured" in done.output


def test_bench_finds_a_wrong_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def worker_with_a_wrong_result(*_: Any) -> Any:
        cell = whole_document()["cells"][0]
        cell["results"]["onchip"]["right"] = False
        return {"providers": {"onchip": {}, "torch": {}}, "cells": [cell]}

    monkeypatch.setattr(command, "run_worker", worker_with_a_wrong_result)
    done = run("--quick", "--json", tmp_path / "r.json")
    assert done.exit_code == 1
    assert "results differ" in done.stderr


def test_bench_reports_a_dead_worker() -> None:
    cells = grid(["forward"], ["float32"], [8], seqlens=[8], heads=1)
    spec = worker.Spec("cpu", cells, ["nobody"], 1, 1, 1, 1.0, 0.001, 8)
    with pytest.raises(runner.WorkerError):
        runner.run_worker(spec, {}, lambda record: None)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--isa", "mmx"], "--isa: mmx"),
        (["--dtype", "int8"], "--dtype: int8"),
        (["--pass", "sideways"], "--pass: sideways"),
        (["--provider", "abacus"], "--provider: abacus"),
        (["--json", "/nonexistent/r.json"], "/nonexistent"),
        (["--plot", "r.svg"], "r.svg"),
    ],
)
def test_bench_refuses(arguments: list[Any], named: str) -> None:
    done = run("--quick", *arguments)
    assert done.exit_code == 2
    assert named in done.stderr


def test_relative_error_keeps_nan() -> None:
    good, bad = np.ones(2), np.array([1.0, np.nan])
    assert relative_error([good, good], [good, 2 * good]) == 0.5
    assert math.isnan(relative_error([bad, good], [good, good]))


def test_spec_survives_json() -> None:
    cells = grid(PASSES, DTYPES, (64, 128))
    spec = worker.Spec("cpu", cells, ["onchip"], 2, 7, 3, 30.0, 0.05, 2048)
    assert worker.Spec.from_json(spec.to_json()) == spec
    assert len(cells) == 24


def test_tensors_are_the_same_in_every_run() -> None:
    cell = Cell("forward", "float16", 8, False, seqlen=16, heads=2)
    for x, y in zip(make_tensors(cell), make_tensors(cell), strict=True):
        np.testing.assert_array_equal(x, y)


def test_repository_root(tmp_path: Path) -> None:
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "python/onchip").mkdir(parents=True)
    assert environment.repository_root(tmp_path / "python") == tmp_path
    assert environment.repository_root(tmp_path / "benchmarks/results") == tmp_path
    assert environment.repository_root(tmp_path.parent) is None


def test_commit_of_a_copy_without_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCHIP_COMMIT", "0123456")
    assert environment.commit(None) == "0123456"
    monkeypatch.delenv("ONCHIP_COMMIT")
    assert environment.commit(None) is None


def test_only_the_whole_grid_is_kept_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "python/onchip").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    suite = CpuSuite()

    def path(**options: Any) -> Path | None:
        asked = Options(isa="avx2", **options)
        return command._default_path(suite, suite.spec(asked), asked)

    kept = path()
    assert kept is not None
    assert kept.parent == tmp_path / "benchmarks/results"
    assert kept.name.endswith("-avx2-2t.json")
    assert kept.parent.is_dir()
    assert path(dims=[64]) is None
    assert path(providers=["onchip"]) is None
    assert path(quick=True) is None


def test_results_are_one_record_a_line() -> None:
    document = {"a": 0.123456789012, "cells": [{"x": [1.0, 2.5]}, {"x": None}], "none": []}
    text = results.as_text(document)
    assert json.loads(text) == document | {"a": 0.1234568}
    assert len(text.splitlines()) == 8


# -------------------------------------------------------------------- bars


PASS_AND_DTYPE = ("forward", "float32")


def whole_document() -> dict[str, Any]:
    """The whole grid, with every bar cleared by a little."""
    cells = []
    for cell in grid(PASSES, DTYPES, (64, 128)):
        ratio = bars.MIN_GEOMEAN[cell.direction, cell.dtype] * 1.01

        def result(seconds: float, flops: float = cell.flops) -> dict[str, Any]:
            return {
                "median_seconds": seconds,
                "min_seconds": seconds,
                "max_seconds": seconds,
                "gflops": flops / seconds / 1e9,
                "right": True,
            }

        ours = result(0.1)
        gemm = {"gflops": ours["gflops"] / 0.61} if cell.dtype == "float32" else None
        results = {"onchip": ours, "torch": result(0.1 * ratio)}
        cells.append({**cell.as_dict(), "results": results, "skipped": {}, "gemm": gemm})
    return {
        "threads": 2,
        "isa": "avx2",
        "providers": {"torch": {"version": "2.13.0+cpu"}},
        "cells": cells,
        "memory": {"share": 0.0199},
    }


def failed(document: dict[str, Any]) -> list[str]:
    return [bar.name for bar in bars.evaluate(document) if not bar.passed]


def test_bars_pass_when_all_are_cleared() -> None:
    assert failed(whole_document()) == []


@pytest.mark.parametrize(("direction", "dtype"), bars.MIN_GEOMEAN)
def test_each_geometric_mean_has_a_bar(direction: str, dtype: str) -> None:
    document = whole_document()
    for cell in document["cells"]:
        if (cell["direction"], cell["dtype"]) == (direction, dtype):
            cell["results"]["torch"]["median_seconds"] *= 0.98
    assert failed(document) == [f"{direction} {dtype} over torch, geometric mean"]


def test_one_slow_cell_fails_though_the_mean_passes() -> None:
    document = whole_document()
    cells = [c for c in document["cells"] if (c["direction"], c["dtype"]) == PASS_AND_DTYPE]
    for cell, ratio in zip(cells, (0.89, 2.0, 2.0, 2.0), strict=True):
        cell["results"]["torch"]["median_seconds"] = 0.1 * ratio
    assert failed(document) == ["worst cell over torch"]


def change_gemm(document: dict[str, Any]) -> None:
    for cell in document["cells"]:
        if cell["gemm"]:
            cell["gemm"]["gflops"] *= 1.05


@pytest.mark.parametrize(
    ("change", "bar"),
    [
        (lambda d: d.update(threads=4), "protocol"),
        (lambda d: d.update(isa="native"), "protocol"),
        (lambda d: d["providers"].update(torch={"version": "2.12.0"}), "protocol"),
        (lambda d: d["cells"][0].update(seqlen=512), "protocol"),
        (lambda d: d["cells"].pop(1), "protocol"),
        (change_gemm, "forward float32 d=128 full, of the GEMM rate"),
        (lambda d: d["memory"].update(share=0.0201), "extra memory"),
        (lambda d: d.update(memory=None), "extra memory"),
        (lambda d: d["cells"][5]["results"]["onchip"].update(right=False), "results agree"),
    ],
)
def test_every_other_bar_can_fail(change: Any, bar: str) -> None:
    document = copy.deepcopy(whole_document())
    change(document)
    names = failed(document)
    assert len(names) == 1
    assert names[0].startswith(bar)


def test_summary_names_the_worst_cell() -> None:
    document = whole_document()
    document["cells"][2]["results"]["torch"]["median_seconds"] = 0.05
    row = summarise(document["cells"], "torch")[0]
    assert (row["direction"], row["dtype"]) == PASS_AND_DTYPE
    assert row["worst_cell"] == "d=128 full s=2048"
    assert row["worst"] == pytest.approx(0.5)
    assert row["geomean"] == pytest.approx((0.5 * 1.212**3) ** 0.25)
