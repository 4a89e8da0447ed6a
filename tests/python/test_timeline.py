# SPDX-License-Identifier: Apache-2.0
"""The picture of a block's time, drawn from marks as onchip_timeline prints them."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
SPANS = ["wait for work", "wait for S", "shifted softmax", "store", "release", "copy K"]
DOCUMENT: dict[str, Any] = {
    "dim": 128, "seqlen": 512, "causal": True, "kernel": "sm90_fwd_bfloat16_d128_timeline",
    "spans": SPANS,
    "rows": [
        # Three tiles of 100 clocks, and the beginning of a fourth.
        {"name": "warpgroup 0", "marks": [
            [100 * tile + clock, span]
            for tile in range(4)
            for clock, span in ((5, 0), (20, 1), (40, 2), (70, 3), (95, 4))
            if tile < 3 or clock < 30
        ]},
        {"name": "copies", "marks": [[0, 5], [150, 0], [310, 5]]},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def timeline() -> ModuleType:
    spec = importlib.util.spec_from_file_location("timeline", REPOSITORY / "benchmarks/timeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_window_is_of_whole_tiles(timeline: ModuleType) -> None:
    assert timeline.window(DOCUMENT, 0, 1) == (0, 105)
    assert timeline.window(DOCUMENT, 1, 2) == (105, 305)
    for first, tiles in ((2, 2), (-1, 1), (0, 0)):
        with pytest.raises(SystemExit, match="the marks hold 3"):
            timeline.window(DOCUMENT, first, tiles)


def test_clocks_are_summed_within_the_window(timeline: ModuleType) -> None:
    found = timeline.clocks_of(DOCUMENT, 105, 305)
    assert found["warpgroup 0"] == {
        "shifted softmax": 60, "store": 50, "wait for S": 40, "wait for work": 30, "release": 20,
    }  # fmt: skip
    assert found["copies"] == {"wait for work": 155, "copy K": 45}


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    path = tmp_path / "marks.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


def test_clocks_of_a_tile_are_printed(
    timeline: ModuleType, marks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline.main([str(marks), "--first-tile", "1"])
    printed = capsys.readouterr().out
    assert "100 clocks a tile" in printed
    assert "warpgroup 0: shifted softmax 30, store 25" in printed


def test_a_picture_is_drawn(timeline: ModuleType, marks: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = marks.with_name("picture.png")
    timeline.main([str(marks), str(picture), "--first-tile", "1"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_every_span_of_the_kernel_has_a_color(timeline: ModuleType) -> None:
    header = (REPOSITORY / "cuda/sm90/fwd_spans.hpp").read_text()
    names = re.findall(r'"([^"]+)"[,}]', header.partition("kSpanNames{")[2])
    assert sorted(timeline.COLORS) == sorted(names)
