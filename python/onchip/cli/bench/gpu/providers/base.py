# SPDX-License-Identifier: Apache-2.0
import contextlib
import importlib
import importlib.metadata
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from onchip.cli.bench.cells import Cell, Tensors
from onchip.cli.bench.provider import Provider, UnavailableError


def needed(module: str) -> Any:
    """The module, imported; raises where it is not there or does not load."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        raise UnavailableError(str(error).splitlines()[0] if str(error) else module) from error


def version_of(*distributions: str) -> dict[str, str]:
    """Of the first that is installed."""
    for name in distributions:
        try:
            return {"version": importlib.metadata.version(name)}
        except importlib.metadata.PackageNotFoundError:
            continue
    return {}


@contextlib.contextmanager
def new_threads_expected() -> Iterator[None]:
    """Around work of torch.autograd on a GPU. Its thread has no CUDA context at first; torch gives
    it one, and warns of that where the first work is a matrix product."""
    with warnings.catch_warnings():
        missing = "Attempting to run cuBLAS, but there was no current CUDA context"
        warnings.filterwarnings("ignore", missing, UserWarning)
        yield


class GpuProvider(Provider):
    """A provider that reads (B, S, H, D) tensors. Its call returns tensors of that layout: [out],
    [dq, dk, dv], or all four where the pass is both."""

    @abstractmethod
    def __init__(self, device: str) -> None: ...


class AutogradProvider(GpuProvider):
    """One whose gradients come from torch.autograd."""

    @abstractmethod
    def attention(self, cell: Cell, q: Any, k: Any, v: Any) -> Any:
        """out of (B, S, H, D) tensors, differentiable."""

    def prepare(self, cell: Cell, tensors: Tensors) -> Callable[[], Any]:
        torch = needed("torch")
        q, k, v, dout = tensors
        if cell.direction == "forward":

            def forward() -> list[Any]:
                with torch.no_grad():
                    return [self.attention(cell, q, k, v)]

            return forward
        inputs = tuple(x.detach().requires_grad_() for x in (q, k, v))
        if cell.direction == "backward":
            saved = self.attention(cell, *inputs)
            return lambda: torch.autograd.grad(saved, inputs, dout, retain_graph=True)

        def both() -> list[Any]:
            out = self.attention(cell, *inputs)
            return [out, *torch.autograd.grad(out, inputs, dout)]

        return both
