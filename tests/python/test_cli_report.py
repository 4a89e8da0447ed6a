# SPDX-License-Identifier: Apache-2.0
"""docs/performance.md is what the generator makes of the committed results."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner

from gpu_bench import whole_document
from onchip.cli.app import app
from onchip.cli.bench import page, results

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_results() -> None:
    assert (ROOT / page.PAGE).read_text() == page.render(ROOT), "run ./dev bench --report"


def test_the_figures_are_there() -> None:
    text = (ROOT / page.PAGE).read_text()
    for path in results.kept(ROOT):
        assert f"(performance/{path.stem}" in text
    for figure in (ROOT / page.FIGURES).iterdir():
        assert f"(performance/{figure.name})" in text


def test_report_writes_page_and_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for folder in ("benchmarks/results", "docs", "python/onchip"):
        (tmp_path / folder).mkdir(parents=True)
    for path in results.kept(ROOT):
        if path.stem.startswith("cpu"):
            (tmp_path / "benchmarks/results" / path.name).write_bytes(path.read_bytes())
    gpu = tmp_path / "benchmarks/results/gpu-test-bfloat16.json"
    gpu.write_text(results.as_text(whole_document()))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bench", "--report"])
    assert done.exit_code == 0, done.output
    text = (tmp_path / page.PAGE).read_text()
    assert text == page.render(tmp_path)
    for ending in ("speed", "memory", "roofline"):
        name = f"performance/gpu-test-bfloat16-{ending}.png"
        assert f"({name})" in text
        assert (tmp_path / "docs" / name).read_bytes().startswith(b"\x89PNG")


def test_report_needs_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bench", "--report"])
    assert done.exit_code == 2
    assert "no checkout" in done.stderr
