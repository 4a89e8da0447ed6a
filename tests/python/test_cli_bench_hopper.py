# SPDX-License-Identifier: Apache-2.0
"""The score of `onchip bench` on a Hopper, its bars and its table, without one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from gpu_bench import HostMeter, hopper_document, whole_document
from onchip.cli.bench import results
from onchip.cli.bench.gpu import bars, hopper
from onchip.cli.bench.gpu.grid import DIMS, SEQLENS, grid
from onchip.cli.bench.gpu.suite import GpuSuite
from onchip.cli.bench.suite import Options

FORWARD = "Hopper score, forward "


def hopper_bars(document: dict[str, Any]) -> dict[str, bool]:
    return {
        bar.name.removeprefix(FORWARD): bar.passed
        for bar in bars.evaluate(document)
        if bar.name.startswith(FORWARD)
    }


def failed(document: dict[str, Any]) -> set[str]:
    return {name.partition(", g")[0] for name, ok in hopper_bars(document).items() if not ok}


def forward_cells(document: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    wanted = {"direction": "forward", "dtype": "bfloat16", **fields}
    return [cell for cell in document["cells"] if wanted.items() <= cell.items()]


def rescale(cells: list[dict[str, Any]], factor: float, name: str = "onchip") -> None:
    """Makes a provider so many times as fast."""
    for cell in cells:
        cell["results"][name]["median_seconds"] /= factor


# ------------------------------------------------------------------- the score


def test_the_table_has_every_forward_cell() -> None:
    cells = grid(["forward"], ["bfloat16"])
    places = [hopper.Place(cell.dim, cell.causal, cell.seqlen) for cell in cells]
    assert list(hopper.BEST_OVER_CUDNN) == places
    assert all(1 <= lead < 1.4 for lead in hopper.BEST_OVER_CUDNN.values())


def test_a_score_is_the_part_of_the_lead_over_cudnn() -> None:
    document = hopper_document(score=1.0)
    (cell,) = forward_cells(document, dim=128, causal=True, seqlen=4096)
    assert hopper.score_of(cell) == pytest.approx(1.0)
    ours, cudnn = (cell["results"][name] for name in ("onchip", "torch-cudnn"))
    ours["median_seconds"] = cudnn["median_seconds"]
    assert hopper.score_of(cell) == pytest.approx(1 / 1.281)
    ours["median_seconds"] = cudnn["median_seconds"] / 1.281 / 1.5
    assert hopper.score_of(cell) == pytest.approx(1.5)


@pytest.mark.parametrize(
    "change",
    [
        lambda cell: cell.update(direction="backward"),
        lambda cell: cell.update(dim=96),
        lambda cell: cell.update(seqlen=768),
        lambda cell: cell.update(heads=1),
        lambda cell: cell.update(batch=1),
        lambda cell: cell["results"].pop("torch-cudnn"),
        lambda cell: cell["results"].pop("onchip"),
        lambda cell: cell["results"]["torch-cudnn"].update(right=False),
        lambda cell: cell["results"]["onchip"].update(right=False),
    ],
)
def test_what_has_no_score(change: Any) -> None:
    cell = hopper_document()["cells"][0]
    assert hopper.score_of(cell) is not None
    change(cell)
    assert hopper.score_of(cell) is None


# -------------------------------------------------------------------- bars


def test_bars_are_those_of_a_hopper_only() -> None:
    assert hopper_bars(whole_document()) == {}
    names = {
        "bfloat16", *(f"bfloat16 d={dim}" for dim in DIMS), "bfloat16 s <= 1024",
        "bfloat16, worst cell", 'bfloat16 softmax="safe"',
    }  # fmt: skip
    judged = hopper_bars(hopper_document())
    assert {name.partition(", g")[0] for name in judged} == names
    judged = hopper_bars(hopper_document(dtypes=("bfloat16", "float16")))
    assert {name.partition(", g")[0] for name in judged} == {*names, "float16"}


def test_bars_pass_when_all_are_cleared() -> None:
    document = hopper_document(dtypes=("bfloat16", "float16"))
    assert [bar for bar in bars.evaluate(document) if not bar.passed] == []


@pytest.mark.parametrize(
    ("fields", "score", "name", "bar"),
    [
        ({}, 1.0299, "onchip", "bfloat16"),
        ({"dim": 64}, 1.0499, "onchip", "bfloat16 d=64"),
        ({"dim": 128}, 1.0299, "onchip", "bfloat16 d=128"),
        ({"dim": 256}, 0.9699, "onchip", "bfloat16 d=256"),
        ({"seqlen": 512}, 1.0499**2 / 1.08, "onchip", "bfloat16 s <= 1024"),
        ({"dim": 64, "causal": True, "seqlen": 8192}, 0.9199, "onchip", "bfloat16, worst cell"),
        ({}, 0.9699, "onchip-safe", 'bfloat16 softmax="safe"'),
        ({"dtype": "float16"}, 0.9999, "onchip", "float16"),
    ],
)
def test_every_bar_can_fail(fields: Any, score: float, name: str, bar: str) -> None:
    """And passes where these cells score a little more."""
    document = hopper_document(score=1.08, safe=1.08, dtypes=("bfloat16", "float16"))
    assert failed(document) == set()
    cells = forward_cells(document, **fields)
    rescale(cells, score / 1.08, name)
    assert bar in failed(document)
    rescale(cells, 1.0003, name)
    assert bar not in failed(document)


@pytest.mark.parametrize(
    ("drop", "bars_failed"),
    [
        ("torch-cudnn", {"bfloat16", "bfloat16 d=64", "bfloat16 s <= 1024",
                         "bfloat16, worst cell", 'bfloat16 softmax="safe"'}),
        ("onchip-safe", {'bfloat16 softmax="safe"'}),
    ],
)  # fmt: skip
def test_a_cell_that_was_not_measured_fails(drop: str, bars_failed: set[str]) -> None:
    document = hopper_document()
    del document["cells"][0]["results"][drop]
    assert failed(document) == bars_failed
    for cell in document["cells"]:
        cell["results"].pop(drop, None)
    judged = {bar.name: bar for bar in bars.evaluate(document)}
    bar = judged[f'{FORWARD}bfloat16 softmax="safe", geometric mean']
    assert (bar.measured, bar.passed) == ("not measured", False)


def test_peers_do_not_see_the_safe_softmax() -> None:
    suite = GpuSuite()
    with_safe, without = hopper_document(), hopper_document()
    for cell in without["cells"]:
        cell["results"].pop(hopper.SAFE, None)
    assert suite.summary(with_safe) == suite.summary(without)
    judged, before = bars.evaluate(with_safe), bars.evaluate(without)
    assert [x for x in judged if "safe" not in x.name] == [
        x for x in before if "safe" not in x.name
    ]
    headers = [column.header for column in suite.tables(with_safe)[0].columns]
    assert "onchip-safe" in headers
    assert "over onchip-safe" not in headers


# --------------------------------------------------------------- the provider


def measured(monkeypatch: pytest.MonkeyPatch, kernel: str | None) -> list[dict[str, Any]]:
    """Cells of onchip and onchip-safe, where each plan takes `kernel`, or its own."""
    pytest.importorskip("torch")
    import onchip
    from onchip.cli.bench.gpu.session import GpuSession

    own = onchip.plan
    if kernel is not None:
        monkeypatch.setattr(onchip, "plan", lambda *x, **y: _renamed(own(*x, **y), kernel))
    options = Options(
        quick=True, providers=["onchip", hopper.SAFE], heads=2, batch=2, dims=[16], seqlens=[40],
        dtypes=["bfloat16"],
    )  # fmt: skip
    spec = GpuSuite().spec(options)
    opened = GpuSession(spec, HostMeter())
    assert list(opened.facts()["providers"]) == ["onchip", hopper.SAFE]
    return [opened.measure(cell) for cell in spec.cells]


def _renamed(plan: Any, kernel: str) -> Any:
    names = ("workspace_bytes", "cost", "standard")
    return SimpleNamespace(kernel=kernel, **{name: getattr(plan, name) for name in names})


def test_the_safe_softmax_is_measured_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    import onchip

    asked = []
    own = onchip.attention
    monkeypatch.setattr(onchip, "attention", lambda *x, **y: asked.append(y) or own(*x, **y))
    for record in measured(monkeypatch, "sm90_fwd_bfloat16_d64"):
        if record["direction"] == "forward":
            assert record["results"][hopper.SAFE]["right"]
        else:
            assert list(record["results"]) == ["onchip"]
            assert record["skipped"] == {hopper.SAFE: "forward only"}
    assert {options.get("softmax") for options in asked} == {None, "safe"}


def test_the_safe_softmax_needs_a_kernel_for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    for record in measured(monkeypatch, None):
        assert list(record["results"]) == ["onchip"]
        forward = record["direction"] == "forward"
        assert ("no kernel for Hopper" in record["skipped"][hopper.SAFE]) == forward


# --------------------------------------------------------------- what is shown


def test_the_scores_on_the_page() -> None:
    document = json.loads(results.as_text(hopper_document(score=1.1, safe=1.01)))
    text = GpuSuite().section(document)
    assert "### Score of forward, bfloat16\n" in text
    assert 'above 1 is faster than all three, in brackets with `softmax="safe"`.' in text
    row = "".join(" 1.10 (1.01) |" for _ in (*SEQLENS, "mean"))
    for dim in DIMS:
        assert f"| d={dim} full |{row}\n" in text
        assert f"| d={dim} causal |{row}\n" in text
    assert "| Hopper score, forward bfloat16, worst cell | >= 0.92, 36 cells | 1.100 (d=" in text


def test_the_page_has_scores_where_there_are_any() -> None:
    heading = "### Score of forward"
    assert heading not in GpuSuite().section(whole_document())
    document = hopper_document()
    for cell in document["cells"]:
        cell["results"].pop(hopper.SAFE, None)
        if cell["seqlen"] == 1024:
            del cell["results"]["torch-cudnn"]
    text = GpuSuite().section(document)
    assert "in brackets with" not in text
    assert "| d=64 full | 1.10 | - | 1.10 | 1.10 | 1.10 | 1.10 | 1.10 |" in text
    for cell in document["cells"]:
        cell["results"].pop("torch-cudnn", None)
    assert heading not in GpuSuite().section(document)
