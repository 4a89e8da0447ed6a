# SPDX-License-Identifier: Apache-2.0
"""`onchip tune`: from what the program prints to rows of the planner's table."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

typer_testing = pytest.importorskip("typer.testing")

import onchip  # noqa: E402
from onchip.cli import tune  # noqa: E402
from onchip.cli.app import app  # noqa: E402


def line(seqlen: int, suffix: str, microseconds: float, **changes: Any) -> str:
    cell = {
        "dim": 128, "dim_v": 128, "causal": True, "seqlen": seqlen,
        "kernel": f"sm90_fwd_bfloat16_d128{suffix}", "planned": suffix == "", "tile_q": 128,
        "tile_k": 96, "buffers": [1, 2, 3], "warps": 12, "error": 0.001,
        "seconds": [microseconds * 1e-6 * x for x in (1.0, 0.9, 3.0)],
    }  # fmt: skip
    return json.dumps({**cell, **changes})


LINES = [
    line(512, "", 100), line(512, "_t1", 80),
    line(1024, "", 100), line(1024, "_t1", 90),
    line(2048, "", 100), line(2048, "_t1", 99.5),
    line(512, "", 100, causal=False), line(512, "_t1", 120, causal=False),
]  # fmt: skip


def test_rows_are_the_fastest_by_length() -> None:
    found = tune.cells(LINES)
    assert found[0]["median"] == pytest.approx(1e-4)
    rows = tune.rows(found)
    tile = 'TileRow{{kSm90, kFwd, 2, 128, 128, {}, 128, 96, 2, 12, 0, 0, 0, 0, "{}", 1, 1, {}, 3}},'
    assert [text.partition("  //")[0] for text in rows] == [
        tile.format("kCausal", "", 2048), tile.format("kCausal", "_t1", 0),
        tile.format("kDense", "", 0),
    ]  # fmt: skip
    assert rows[1].endswith("s 512 to 1024: 1.179x what is planned")
    assert rows[0].endswith("s 2048 to 2048: 1.000x what is planned")


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("sm90_fwd_bfloat16_d64", ""),
        ("sm90_fwd_bfloat16_d192_128", ""),
        ("sm90_fwd_bfloat16_d192_128_t2x64", "_t2x64"),
        ("sm90_fwd_float16_d64_t4x64", "_t4x64"),
    ],
)
def test_suffixes(kernel: str, expected: str) -> None:
    assert tune.suffix(kernel) == expected


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_command_writes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = onchip.device_info
    monkeypatch.setattr(onchip, "device_info", lambda _: real("H200"))
    (tmp_path / "lines").write_text("\n".join(LINES) + "\n")
    tool = script(tmp_path / "tool", f'test "$1" = 3 && cat {tmp_path / "lines"}\n')
    out = tmp_path / "new" / "h200.json"
    run = typer_testing.CliRunner().invoke
    done = run(app, ["tune", str(tool), "--rounds", "3", "--out", str(out)])
    assert done.exit_code == 0, done.output
    document = json.loads(out.read_text())
    assert document["device"] == "H200"
    assert len(document["cells"]) == len(LINES)
    assert all(row in done.output for row in document["rows"])
    failing = script(tmp_path / "failing", "exit 7\n")
    assert run(app, ["tune", str(failing), "--out", str(out)]).exit_code == 7
