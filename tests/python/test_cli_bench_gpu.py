# SPDX-License-Identifier: Apache-2.0
"""`onchip bench` on a GPU: most of it with a stand-in for the GPU, and one run on a real one."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner, Result

from gpu_bench import NO_CONTEXT, RATES, HostMeter, noisy, whole_document
from onchip.cli import cuda
from onchip.cli.app import app
from onchip.cli.bench import command, report, results, worker
from onchip.cli.bench.gpu import bars
from onchip.cli.bench.gpu.grid import grid
from onchip.cli.bench.gpu.providers import PROVIDERS
from onchip.cli.bench.gpu.providers.unfused import Unfused
from onchip.cli.bench.gpu.suite import GpuSuite
from onchip.cli.bench.suite import Options

RECORDED = Path(__file__).with_name("recorded_gpu_bench.json")


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["bench", "--device", "cuda", *map(str, arguments)])


@pytest.fixture
def seen_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "state", lambda: cuda.State(True, None))


# --------------------------------------------------------------- what is asked


def test_the_grid_is_that_of_the_papers() -> None:
    cells = grid()
    assert len(cells) == 2 * 3 * 3 * 2 * 6
    assert {cell.batch * cell.seqlen for cell in cells} == {16384}
    assert {cell.heads * cell.dim for cell in cells} == {2048}
    flops = {cell.direction: cell.flops for cell in cells if cell.dim == 64 and not cell.causal}
    assert flops["forward"] == 4 * 32 * 16384**2 * 64
    assert flops["backward"] == 2.5 * flops["forward"]
    assert flops["both"] == 3.5 * flops["forward"]


def test_options_restrict_the_grid() -> None:
    asked = Options(dims=[64], dtypes=["float16"], passes=["both"], seqlens=[512, 1024])
    spec = GpuSuite().spec(asked)
    assert len(spec.cells) == 4
    assert {cell.dtype for cell in spec.cells} == {"float16"}
    assert spec.providers == list(PROVIDERS)
    few = GpuSuite().spec(Options(providers=["unfused", "onchip"], heads=2, batch=1))
    assert few.providers == ["onchip", "unfused"]
    assert {(cell.heads, cell.batch) for cell in few.cells} == {(2, 1)}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--dtype", "float32"], "--dtype: float32"),
        (["--provider", "torch"], "--provider: torch"),
        (["--pass", "sideways"], "--pass: sideways"),
        (["--plot", "r.svg"], "r.svg"),
    ],
)
@pytest.mark.usefixtures("seen_gpu")
def test_refuses(arguments: list[Any], named: str) -> None:
    done = run("--quick", *arguments)
    assert done.exit_code == 2
    assert named in done.stderr


@pytest.mark.usefixtures("seen_gpu")
def test_lists_the_providers() -> None:
    done = run("--list")
    assert done.stdout.split() == list(PROVIDERS)


def test_says_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "state", lambda: cuda.State(False, "no CUDA backend"))
    done = run("--quick")
    assert done.exit_code == 2
    assert "no CUDA backend" in done.stderr


def test_only_the_whole_grid_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = GpuSuite()
    info = SimpleNamespace(name="NVIDIA H200")
    monkeypatch.setattr("onchip.device_info", lambda name: info)

    def name(**asked: Any) -> str | None:
        options = Options(**asked)
        return suite.file_name(suite.spec(options), options)

    assert name() == "gpu-nvidia-h200-bfloat16-float16"
    assert name(dtypes=["bfloat16"], providers=["onchip", "torch-flash"]) == (
        "gpu-nvidia-h200-bfloat16"
    )
    assert name(dims=[64]) is None
    assert name(providers=["onchip", "unfused"]) is None


# ------------------------------------------------------------ how it is measured


def session(providers: list[str], **options: Any) -> Any:
    pytest.importorskip("torch")
    from onchip.cli.bench.gpu.session import GpuSession

    asked = Options(quick=True, providers=providers, heads=2, batch=2, **options)
    spec = GpuSuite().spec(asked)
    return spec, GpuSession(spec, HostMeter())


def test_every_pass_is_right_and_timed() -> None:
    names = ["onchip", "torch-math", "unfused"]
    spec, opened = session(names, dims=[16], dtypes=["bfloat16"], seqlens=[40])
    assert list(opened.facts()["providers"]) == names
    for cell in spec.cells:
        record = opened.measure(cell)
        assert list(record["results"]) == names, record["skipped"]
        for result in record["results"].values():
            assert result["right"], (cell, result)
            assert len(result["seconds"]) >= 1
            assert result["peak_bytes"] == 1 << 20
        assert len(record["plan"]["kernels"]) == (2 if cell.direction == "both" else 1)
        assert record["plan"]["unfused_bytes"] > record["plan"]["bytes"] > 0
    extras = opened.extras()
    assert [(r["batch"], list(r["peak_bytes"])) for r in extras["memory"]] == [(1, names)]
    assert {(r["direction"], r["provider"]) for r in extras["kernels"]} == {
        (direction, name) for direction in ("forward", "backward") for name in names
    }


def test_a_wrong_result_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    import onchip

    right = onchip.attention
    monkeypatch.setattr(onchip, "attention", lambda *x, **y: 1.1 * right(*x, **y))
    spec, opened = session(
        ["onchip"], dims=[16], dtypes=["float16"], seqlens=[40], passes=["forward"]
    )
    assert [opened.measure(cell)["results"]["onchip"]["right"] for cell in spec.cells] == [
        False
    ] * 2


def test_what_is_not_there_or_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    names = ["onchip", "unfused", "flash_attn_interface", "flashinfer"]
    for module in ("flash_attn_interface", "flashinfer"):
        monkeypatch.setitem(sys.modules, module, None)
    spec, opened = session(names, dims=[16], dtypes=["bfloat16"], seqlens=[40])
    facts = opened.facts()["providers"]
    assert "unavailable" in facts["flash_attn_interface"]
    assert "unavailable" in facts["flashinfer"]

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(PROVIDERS["unfused"], "attention", full)
    record = opened.measure(spec.cells[0])
    assert list(record["results"]) == ["onchip"]
    assert record["skipped"] == {"unfused": "does not fit in memory"}
    monkeypatch.undo()
    monkeypatch.setattr(HostMeter, "share_bytes", lambda self: 1000)
    record = opened.measure(spec.cells[0])
    assert record["skipped"]["unfused"] == "takes 1.0 MiB: no room beside the others"


@pytest.mark.parametrize(("said", "raises"), [(NO_CONTEXT, False), ("something else", True)])
def test_a_new_thread_of_autograd_is_no_news(
    monkeypatch: pytest.MonkeyPatch, said: str, raises: bool
) -> None:
    """Here every warning is an error: that of the thread's context is kept away, no other."""
    pytest.importorskip("torch")
    monkeypatch.setattr(Unfused, "attention", noisy(Unfused.attention, said))
    spec, opened = session(
        ["unfused"], dims=[16], dtypes=["float16"], seqlens=[40], passes=["backward"]
    )
    with pytest.raises(UserWarning) if raises else contextlib.nullcontext():
        assert opened.measure(spec.cells[0])["results"]["unfused"]["right"]


def flash_attention(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    """A peer with the signature of `flash_attn_func`."""
    import torch

    turned = (x.transpose(1, 2) for x in (q, k, v))
    fused = torch.nn.functional.scaled_dot_product_attention(*turned, is_causal=causal)
    return fused.transpose(1, 2)


class PackedPrefill:
    """A peer with the calls of FlashInfer's BatchPrefillWithRaggedKVCacheWrapper."""

    def __init__(self, workspace: Any, layout: str) -> None:
        assert layout == "NHD"

    def plan(self, starts_q: Any, starts_k: Any, heads: int, heads_kv: int, dim: int, **kw: Any):
        self.starts, self.shape, self.causal = starts_q.tolist(), (heads, dim), kw["causal"]

    def run(self, q: Any, k: Any, v: Any) -> Any:
        shape = (len(self.starts) - 1, self.starts[1], *self.shape)
        return flash_attention(*(x.view(shape) for x in (q, k, v)), causal=self.causal).reshape(
            q.shape
        )


@pytest.mark.parametrize("with_lse", [False, True])
def test_peers_are_called_as_they_ask(monkeypatch: pytest.MonkeyPatch, with_lse: bool) -> None:
    def function(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        out = flash_attention(q, k, v, causal=causal)
        return (out, None) if with_lse else out

    for module in ("flash_attn", "flash_attn_interface", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(flash_attn_func=function))
    fake = SimpleNamespace(BatchPrefillWithRaggedKVCacheWrapper=PackedPrefill)
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    names = ["flash_attn", "flash_attn_interface", "flash_attn.cute", "flashinfer"]
    spec, opened = session(names, dims=[16], dtypes=["float16"], seqlens=[40])
    for cell in spec.cells:
        record = opened.measure(cell)
        assert all(result["right"] for result in record["results"].values())
        forward_only = {"flashinfer"} if cell.direction != "forward" else set()
        assert set(record["results"]) == set(names) - forward_only


def test_the_process_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    from onchip.cli.bench.runner import WorkerError, run_worker

    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    spec = GpuSuite().spec(Options(quick=True))
    with pytest.raises(WorkerError):
        run_worker(spec, {}, lambda record: None)
    assert capfd.readouterr().err.strip() == "onchip bench: torch: sees no GPU"


def test_spec_survives_json() -> None:
    spec = GpuSuite().spec(Options())
    assert worker.Spec.from_json(spec.to_json()) == spec


# -------------------------------------------------------------------- bars


def failed(document: dict[str, Any]) -> list[str]:
    return [bar.name for bar in bars.evaluate(document) if not bar.passed]


def test_bars_pass_when_all_are_cleared() -> None:
    assert failed(whole_document()) == []


def slow_peer(direction: str, ratio: float) -> Any:
    def change(document: dict[str, Any]) -> None:
        for cell in document["cells"]:
            if cell["direction"] == direction:
                ours = cell["results"]["onchip"]["median_seconds"]
                cell["results"]["torch-flash"]["median_seconds"] = ratio * ours

    return change


def change_result(index: int, name: str, **values: Any) -> Any:
    return lambda document: document["cells"][index]["results"][name].update(values)


def unfused_place(document: dict[str, Any]) -> dict[str, Any]:
    place = bars.UNFUSED_PLACE.items()
    return next(c for c in document["cells"] if all(c[x] == y for x, y in place))["results"]


@pytest.mark.parametrize(
    ("change", "bar"),
    [
        (lambda d: d["cells"].pop(40), "protocol"),
        (lambda d: d["cells"][3]["results"].pop("torch-flash"), "protocol"),
        (change_result(5, "onchip", right=False), "results agree"),
        (slow_peer("forward", 1.04), "forward over torch-flash"),
        (slow_peer("backward", 1.04), "backward over torch-flash"),
        (change_result(7, "torch-flash", median_seconds=1e-9), "worst cell"),
        (lambda d: d["memory"][5]["peak_bytes"].update({"onchip": 10**9}), "peak memory"),
        (lambda d: d.update(memory=[]), "peak memory of forward + backward is linear"),
        (change_result(-1, "onchip", peak_bytes=10**9), "peak memory of forward + backward over"),
        (lambda d: unfused_place(d)["unfused"].update(median_seconds=1e-3), "speed over unfused"),
        (lambda d: unfused_place(d)["unfused"].update(peak_bytes=1 << 28), "memory over unfused"),
        (lambda d: unfused_place(d).pop("unfused"), "speed over unfused"),
    ],
)
def test_every_bar_can_fail(change: Any, bar: str) -> None:
    document = copy.deepcopy(whole_document())
    change(document)
    assert any(name.startswith(bar) for name in failed(document))


@pytest.mark.parametrize("causal", [False, True])
def test_the_worse_mask_decides_over_unfused(causal: bool) -> None:
    document = copy.deepcopy(whole_document())
    place = bars.UNFUSED_PLACE.items()
    for cell in document["cells"]:
        if all(cell[x] == y for x, y in place):
            ours, unfused = cell["results"]["onchip"], cell["results"]["unfused"]
            over = 4.99 if cell["causal"] == causal else 50
            unfused["median_seconds"] = over * ours["median_seconds"]
    assert [name.partition(",")[0] for name in failed(document)] == ["speed over unfused"]


# --------------------------------------------------------------- what is shown


@pytest.mark.usefixtures("seen_gpu")
def test_a_run_is_shown_judged_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    measured = whole_document()

    def measure(spec: Any, variables: Any, on_cell: Any) -> dict[str, Any]:
        for cell in measured["cells"]:
            on_cell(cell)
        return {
            name: measured[name] for name in ("providers", "device", "cells", "memory", "kernels")
        }

    monkeypatch.setattr(command, "run_worker", measure)
    path, picture = tmp_path / "r.json", tmp_path / "r.png"
    done = run("--dtype", "bfloat16", "--check", "--json", path, "--plot", picture)
    assert done.exit_code == 0, done.output
    assert "FAIL" not in done.output
    assert "x: unavailable no x" in done.output
    for ending in ("speed", "memory", "roofline"):
        assert (tmp_path / f"r-{ending}.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads(path.read_text())
    assert len(document["cells"]) == 108
    rows = [row for row in document["summary"] if row["over"] == "torch-flash"]
    assert {(row["direction"], row.get("dim")) for row in rows} == {
        (direction, dim)
        for direction in ("forward", "backward", "both")
        for dim in (64, 128, 256, None)
    }
    ratio = RATES["onchip"] / RATES["torch-flash"]
    assert all(math.isclose(row["geomean"], ratio, rel_tol=1e-5) for row in rows)
    assert {bar["passed"] for bar in document["bars"]} == {True}


def test_the_section_of_the_page() -> None:
    document = json.loads(results.as_text(whole_document()))
    text = GpuSuite().section(document)
    assert "| d=64 full | 300 (1.07) |" in text
    assert "`ns::fused` 100 us" in text
    assert "| forward | bfloat16 | all | torch-flash | 1.07 | 1.07 |" in text
    assert "**fail**" not in text


def test_a_recorded_run_is_shown(tmp_path: Path) -> None:
    """Six cells of a run on an H200, as the command wrote them."""
    pytest.importorskip("matplotlib")
    document = results.load(RECORDED)
    suite = GpuSuite()
    text = suite.section(document)
    assert text.startswith("NVIDIA H200, driver 580")
    assert "| d=64 full | 330 (1.09) |" in text
    assert "| bfloat16 d=64 h=32 s=4096 | 97.5 MiB | 97.0 MiB | 4.0 GiB |" in text
    assert "`onchip::cuda::sm80::forward_kernel` 1669 us" in text
    passed = {bar.name: bar.passed for bar in suite.evaluate(document)}
    assert passed["worst cell over torch-flash"]
    assert not passed["protocol: the whole grid in bfloat16, beside torch-flash"]
    assert [table.row_count for table in suite.tables(document)] == [6, 6]
    for ending, draw in suite.figures.items():
        draw(document, tmp_path / f"{ending}.png")
        assert (tmp_path / f"{ending}.png").read_bytes().startswith(b"\x89PNG")


def test_cells_that_were_not_measured_are_counted() -> None:
    document = whole_document()
    for cell in document["cells"][:3]:
        cell["skipped"] = {"torch-math": "does not fit in memory"}
    assert "torch-math, 3 cells not measured: does not fit in memory" in report.provider_lines(
        document
    )


# ---------------------------------------------------------------------- a GPU


@pytest.mark.gpu
def test_a_small_run_on_a_gpu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = cuda.state()
    if not state.usable or not torch.cuda.is_available():
        pytest.skip(state.error or "torch sees no GPU")
    path = tmp_path / "r.json"
    done = run(
        "--quick", "--dim", 64, "--seqlen", 256, "--dtype", "bfloat16", "--provider", "onchip",
        "--provider", "torch-flash", "--provider", "unfused", "--json", path,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    document = json.loads(path.read_text())
    expected = whole_document()
    assert set(expected) <= set(document)
    assert set(expected["device"]) == set(document["device"])
    assert len(document["cells"]) == 6
    for cell in document["cells"]:
        assert set(expected["cells"][0]) == set(cell)
        assert set(cell["results"]) == {"onchip", "torch-flash", "unfused"}, cell["skipped"]
        for result in cell["results"].values():
            assert set(expected["cells"][0]["results"]["onchip"]) == set(result)
            assert result["peak_bytes"] > 0
    assert all(record["kernels"] for record in document["kernels"])
    assert {
        x["name"] for r in document["kernels"] if r["provider"] == "onchip" for x in r["kernels"]
    }
