# SPDX-License-Identifier: Apache-2.0
"""What `onchip bench` asks of a kind of device. It measures nothing: that is a session's work."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from onchip.cli.bench.bars import Bar
from onchip.cli.bench.worker import Spec


@dataclass(frozen=True)
class Options:
    """The command line; None and [] stand for the suite's own choice."""

    dims: list[int] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    providers: list[str] = field(default_factory=list)
    seqlens: list[int] = field(default_factory=list)
    heads: int | None = None
    batch: int | None = None
    threads: int = 2
    isa: str = "native"
    rounds: int = 7
    cell_seconds: float | None = None
    quick: bool = False


Figure = Callable[[dict[str, Any], Path], None]  # draws a document into a .png file


class Suite(ABC):
    device: ClassVar[str]  # "cpu" or "cuda"
    passes: ClassVar[tuple[str, ...]]
    dtypes: ClassVar[tuple[str, ...]]
    providers: ClassVar[tuple[str, ...]]
    figures: ClassVar[dict[str, Figure]]  # by what their file's name ends in

    @abstractmethod
    def spec(self, options: Options) -> Spec: ...

    @abstractmethod
    def variables(self, options: Options) -> dict[str, str]:
        """What the measuring process's environment has on top."""

    @abstractmethod
    def facts(self, options: Options) -> dict[str, Any]:
        """Fields of the document that are known before the run."""

    @abstractmethod
    def file_name(self, spec: Spec, options: Options) -> str | None:
        """What the results of the whole grid are kept as, without ".json"; None of a part of it."""

    @abstractmethod
    def summary(self, document: dict[str, Any]) -> dict[str, Any]:
        """Fields of the document that follow from the measured ones."""

    @abstractmethod
    def evaluate(self, document: dict[str, Any]) -> list[Bar]: ...

    @abstractmethod
    def heading(self, document: dict[str, Any]) -> str:
        """One line that says what was measured where."""

    @abstractmethod
    def tables(self, document: dict[str, Any]) -> list[Table]: ...

    @abstractmethod
    def section(self, document: dict[str, Any]) -> str:
        """The tables for docs/performance.md, in Markdown."""


def chosen(known: tuple[str, ...], values: list[str]) -> list[str]:
    """Those of `known` that were asked for, in its order; all where none were."""
    return [name for name in known if name in values] or list(known)


def default_spec(suite: Suite, options: Options) -> dict[str, Any]:
    """The fields of a Spec that all suites settle alike."""
    return {
        "device": suite.device,
        "providers": chosen(suite.providers, options.providers),
        "threads": options.threads,
        "rounds": min(options.rounds, 3) if options.quick else options.rounds,
    }


def figure_path(path: Path, ending: str) -> Path:
    """r.png and "memory" -> r-memory.png; r.png where there is no ending."""
    return path.with_name(f"{path.stem}-{ending}.png") if ending else path
