# SPDX-License-Identifier: Apache-2.0
from abc import abstractmethod
from typing import Any

from onchip.cli.bench.cpu.tensors import Array
from onchip.cli.bench.provider import Provider


class CpuProvider(Provider):
    """A provider that reads NumPy arrays of `make_tensors`."""

    @abstractmethod
    def __init__(self, threads: int) -> None: ...

    @abstractmethod
    def arrays(self, result: Any) -> list[Array]:
        """What the call returned, as float32 (B, H, S, D): [out] or [dq, dk, dv]."""
