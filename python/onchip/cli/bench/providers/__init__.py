# SPDX-License-Identifier: Apache-2.0
"""Who is measured. A new provider is one file with one class here and one line in `PROVIDERS`."""

from onchip.cli.bench.providers.base import Provider, UnavailableError
from onchip.cli.bench.providers.numpy_unfused import NumpyUnfused
from onchip.cli.bench.providers.onchip_cpu import OnchipCpu
from onchip.cli.bench.providers.torch_sdpa import TorchSdpa

PROVIDERS: dict[str, type[Provider]] = {
    provider.name: provider for provider in (OnchipCpu, TorchSdpa, NumpyUnfused)
}

__all__ = ["PROVIDERS", "Provider", "UnavailableError"]
