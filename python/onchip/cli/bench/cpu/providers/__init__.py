# SPDX-License-Identifier: Apache-2.0
"""Who is measured. A new provider is one file with one class here and one line in `PROVIDERS`."""

from onchip.cli.bench.cpu.providers.base import CpuProvider
from onchip.cli.bench.cpu.providers.numpy_unfused import NumpyUnfused
from onchip.cli.bench.cpu.providers.onchip_cpu import OnchipCpu
from onchip.cli.bench.cpu.providers.torch_sdpa import TorchSdpa

PROVIDERS: dict[str, type[CpuProvider]] = {
    provider.name: provider for provider in (OnchipCpu, TorchSdpa, NumpyUnfused)
}

__all__ = ["PROVIDERS", "CpuProvider"]
