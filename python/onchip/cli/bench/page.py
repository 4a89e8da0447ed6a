# SPDX-License-Identifier: Apache-2.0
"""docs/performance.md and its figures, made of the files under benchmarks/results/ and of nothing
else."""

from collections.abc import Iterable
from pathlib import Path

from onchip.cli.bench import results
from onchip.cli.bench.suite import figure_path
from onchip.cli.bench.suites import suite_of

PAGE = Path("docs/performance.md")
FIGURES = Path("docs/performance")

_HEAD = """# Performance

Made by `onchip bench --report` from the files under [benchmarks/results](../benchmarks/results);
edit nothing here. How it is measured: [benchmarks/README.md](../benchmarks/README.md). Ratios are
those of one run, on the same tensors, turn about; absolute figures move with the machine.
"""


def _figures(stem: str, endings: Iterable[str]) -> list[tuple[str, Path]]:
    return [(ending, figure_path(FIGURES / f"{stem}.png", ending)) for ending in endings]


def render(root: Path) -> str:
    """The page of the checkout at `root`."""
    parts = [_HEAD]
    for path in results.kept(root):
        document = results.load(path)
        suite = suite_of(document)
        link = f"[{path.name}](../benchmarks/results/{path.name})"
        pictures = "\n".join(
            f"![{ending or 'rates'}]({figure.relative_to(PAGE.parent).as_posix()})"
            for ending, figure in _figures(path.stem, suite.figures)
        )
        parts.append(
            f"## {path.stem}\n\nFrom {link}. {suite.section(document).rstrip()}\n\n{pictures}\n"
        )
    return "\n".join(parts)


def save(root: Path) -> list[Path]:
    """Writes the page and its figures; returns what was written."""
    (root / FIGURES).mkdir(exist_ok=True)
    written = []
    for path in results.kept(root):
        document = results.load(path)
        suite = suite_of(document)
        for ending, figure in _figures(path.stem, suite.figures):
            suite.figures[ending](document, root / figure)
            written.append(root / figure)
    (root / PAGE).write_text(render(root))
    return [*written, root / PAGE]
