# SPDX-License-Identifier: Apache-2.0
"""Files of results: how they are written, and where the whole grid's are kept in a checkout."""

import json
from pathlib import Path
from typing import Any

DIGITS = 7  # of a figure; a clock gives fewer


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value


def as_text(document: dict[str, Any]) -> str:
    """JSON with one record a line, so that a change to a run is a change of lines."""
    fields = []
    for name, value in _rounded(document).items():
        if isinstance(value, list) and value:
            records = ",\n  ".join(json.dumps(record) for record in value)
            text = f"[\n  {records}\n ]"
        else:
            text = json.dumps(value)
        fields.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def folder(root: Path) -> Path:
    return root / "benchmarks" / "results"


def kept(root: Path) -> list[Path]:
    """The files of runs, in the order of their names."""
    return sorted(folder(root).glob("*.json"))


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document
