# SPDX-License-Identifier: Apache-2.0
"""What the docs say: README's example runs, paths and links lead somewhere, figures are right."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onchip.cli import cuda
from onchip.cli.bench.gpu import hopper

ROOT = Path(__file__).parents[2]
DOCS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "benchmarks/*.md", "tests/cases/*.md")
    for path in ROOT.glob(pattern)
)
FOLDERS = "benchmarks|cmake|cpp|cuda|docs|examples|python|tests|[.]ci"


def sections(text: str) -> set[str]:
    """GitHub's anchors of the headings."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def code(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_docs_are_found() -> None:
    assert {"README.md", "docs/algorithm.md", "docs/numerics.md"} <= set(DOCS)


def run_example(example: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_example_of_the_readme_runs() -> None:
    example, _ = code((ROOT / "README.md").read_text(), "python")
    assert sum(line != "" for line in example.splitlines()) == 5
    assert run_example(example) == example.rpartition("# ")[2].strip()


def test_the_gpu_example_of_the_readme_runs() -> None:
    torch = pytest.importorskip("torch")
    _, example = code((ROOT / "README.md").read_text(), "python")
    usable = cuda.state().usable and torch.cuda.is_available()
    where = "cuda" if usable else "cpu"
    example = example.replace('device="cuda"', f'device="{where}"')
    assert run_example(example + "print(dq.device.type, dq.dtype)") == f"{where} torch.bfloat16"


@pytest.mark.parametrize("name", DOCS)
def test_paths_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    named = re.findall(rf"`((?:{FOLDERS})(?:/[\w.-]+)+/?)`", text)
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("name", DOCS)
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        if not target.exists() or (anchor and anchor not in sections(target.read_text())):
            broken.append(link)
    assert not broken


def test_commands_of_dev_exist() -> None:
    script = (ROOT / "dev").read_text()
    commands = set(re.findall(r"^  ([a-z]+(?: \| [-a-z]+)*)\) ?", script, re.MULTILINE))
    known = {word for alternatives in commands for word in alternatives.split(" | ")}
    named = {
        command
        for name in DOCS
        for command in re.findall(r"\./dev ([a-z]+)", (ROOT / name).read_text())
    }
    assert {"demo", "test", "bench"} <= named
    assert named <= known


def test_the_polynomial_is_as_exact_as_numerics_says() -> None:
    source = (ROOT / "cpp/src/cpu/score-inl.h").read_text()
    body = source[source.index("auto y = hn::MulAdd") : source.index("const auto power")]
    coefficients = [float(np.float32(x)) for x in re.findall(r"hn::Set\(d, ([\d.e+-]+)F\)", body)]
    assert len(coefficients) == 6
    r = np.linspace(-0.5, 0.5, 100_001)
    error = np.abs(np.polyval(coefficients, r) / np.exp2(r) - 1).max()
    assert error < 1.2e-7  # the roundings of float32 bring it to 2e-7
    assert "relative error below 2e-7" in (ROOT / "docs/numerics.md").read_text()


def measured(number: int) -> list[dict[str, Any]]:
    """The summary of the first or second file of results that README links to."""
    names = re.findall(r"\]\((benchmarks/results/[^)]+)\)", (ROOT / "README.md").read_text())
    assert len(names) == 2
    rows: list[dict[str, Any]] = json.loads((ROOT / names[number]).read_text())["summary"]
    return rows


def test_the_speeds_of_the_readme_are_those_measured() -> None:
    text = (ROOT / "README.md").read_text()
    ratios = {
        (row["direction"], row["dtype"], row["over"]): (row["geomean"], row["worst"])
        for row in measured(0)
    }
    rows = re.findall(r"^\| (forward|backward) \| (b?float\d+) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for direction, dtype, figures in rows:
        peers = [x for peer in ("torch", "numpy") for x in ratios[direction, dtype, peer]]
        assert figures == " | ".join(f"{x:.2f}" for x in peers)


@pytest.mark.parametrize(
    ("peer", "name"), [("torch-flash", "FlashAttention-2"), ("torch-cudnn", "cuDNN")]
)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_speeds_of_the_readme_on_a_gpu_are_those_measured(
    direction: str, peer: str, name: str
) -> None:
    rows = [row for row in measured(1) if row["direction"] == direction]
    ratios = {row.get("dim"): row for row in rows if row["over"] == peer}
    means = [ratios[dim]["geomean"] for dim in (64, 128, 256, None)]
    figures = " | ".join(f"{x:.2f}" for x in [*means, ratios[None]["worst"]])
    assert f"\n| {direction} | {name} | {figures} |\n" in (ROOT / "README.md").read_text()


RUNS = ("score/gpu-nvidia-h200-forward", "score/gpu-nvidia-h200-forward-beside-flash",
        "gpu-nvidia-h200-bfloat16")  # fmt: skip


def run(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    return document


@pytest.mark.parametrize(
    ("dtype", "provider", "name"),
    [
        ("bfloat16", "onchip", "bfloat16"),
        ("bfloat16", "onchip-safe", 'bfloat16, `softmax="safe"`'),
        ("float16", "onchip", "float16"),
    ],
)
def test_the_scores_on_hopper_are_those_measured(dtype: str, provider: str, name: str) -> None:
    found = hopper.scores(run(RUNS[0]), dtype, provider)
    assert len(found) == 36
    parts = [{place: found[place] for place in aim.places} for aim in hopper.AIMS]
    means = [statistics.geometric_mean(part.values()) for part in parts]
    figures = " | ".join(f"{x:.3f}" for x in [*means, min(found.values())])
    assert f"\n| {name} | {figures} |\n" in (ROOT / "docs/perf-log.md").read_text()


def speed_of_cudnn(name: str) -> float:
    cells = [cell for cell in run(name)["cells"] if cell["direction"] == "forward"]
    return statistics.geometric_mean(
        cell["results"]["torch-cudnn"]["gflops"] for cell in cells if cell["dtype"] == "bfloat16"
    )


@pytest.mark.parametrize("name", RUNS)
def test_the_scores_by_who_takes_turns_are_those_measured(name: str) -> None:
    found = hopper.scores(run(name), "bfloat16")
    parts = [[found[place] for place in aim.places] for aim in hopper.AIMS]
    safe = hopper.scores(run(name), "bfloat16", "onchip-safe").values()
    figures = [
        *map(statistics.geometric_mean, parts),
        min(found.values()),
        statistics.geometric_mean(safe),
        speed_of_cudnn(name) / speed_of_cudnn(RUNS[0]),
    ]
    row = f"/{name}.json) | " + " | ".join(f"{x:.3f}" for x in figures) + " |\n"
    assert row in (ROOT / "docs/perf-log.md").read_text()


def test_the_score_of_the_readme_is_within_those_measured() -> None:
    means = [
        statistics.geometric_mean(hopper.scores(run(name), "bfloat16").values()) for name in RUNS
    ]
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"forward is {min(means):.2f} to {max(means):.2f} times as fast" in text


def test_what_the_sm80_kernels_reached_is_what_was_measured() -> None:
    rows = run("sm80/gpu-nvidia-h200-bfloat16")["summary"]
    text = " ".join((ROOT / "docs/perf-log.md").read_text().split())
    for direction in ("forward", "backward"):
        x, y, z = (
            f"{row['geomean']:.2f}"
            for row in rows
            if row["direction"] == direction and row["over"] == "torch-flash" and row.get("dim")
        )
        assert f"{direction} {x}, {y} and {z}" in text


def test_the_speed_over_the_unfused_computation_is_that_measured() -> None:
    bars = [bar["measured"] for bar in run(RUNS[2])["bars"] if "speed over unfused" in bar["name"]]
    full, causal = re.findall(r"[\d.]+", bars[0])
    text = (ROOT / "benchmarks/README.md").read_text()
    assert f"at {full} times ({causal} with the\n" in text


def test_the_time_of_the_host_is_that_measured() -> None:
    printed = (ROOT / "benchmarks/results/host/h200.txt").read_text()
    cpp, python = re.findall(r"([\d.]+) us", printed)[:2]
    text = " ".join((ROOT / "docs/perf-log.md").read_text().split())
    assert f"{cpp} us through C++, {python} through Python" in text


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("key 0 ahead by 20 nats, all rows", "key 0 ahead by 20 nats, for all rows"),
        (
            "each block of 128 keys ahead of the last by 4 nats, all rows",
            "each block of 128 keys ahead of the one before by 4 nats, for all rows",
        ),
        ("1% of tiles computed again", "1% of the tiles computed again"),
        ("all tiles computed again", "all tiles computed again"),
        ('ordinary scores, softmax="safe"', 'ordinary scores, `softmax="safe"`'),
    ],
)
def test_what_data_cost_the_softmax_is_what_was_measured(data: str, name: str) -> None:
    rows = run("softmax/h200")["rows"]
    times = {(row["dim"], row["data"]): row["milliseconds"] for row in rows}
    parts = [times[dim, "ordinary scores"] / times[dim, data] for dim in (64, 128, 256)]
    figures = " | ".join(f"{x:.2f}".removeprefix("0") for x in parts)
    assert f"\n| {name} | {figures} |\n" in (ROOT / "docs/numerics.md").read_text()
