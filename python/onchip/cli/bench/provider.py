# SPDX-License-Identifier: Apache-2.0
"""What is asked of a provider, on any device."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from onchip.cli.bench.cells import Cell, Tensors


class UnavailableError(Exception):
    """The provider cannot run here, or not this cell; the text says why."""


class Provider(ABC):
    """One implementation of attention. The constructor imports what it needs or raises
    `UnavailableError`."""

    name: ClassVar[str]

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Version and whatever else says what ran."""

    @abstractmethod
    def prepare(self, cell: Cell, tensors: Tensors) -> Callable[[], Any]:
        """Does everything that is not to be timed and returns the call that is."""
