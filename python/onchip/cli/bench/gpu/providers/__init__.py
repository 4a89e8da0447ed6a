# SPDX-License-Identifier: Apache-2.0
"""Who is measured. A new provider is one file with one class here and one line in `PROVIDERS`."""

from onchip.cli.bench.gpu.providers.base import GpuProvider
from onchip.cli.bench.gpu.providers.flash_attn import FlashAttn2, FlashAttn3, FlashAttn4
from onchip.cli.bench.gpu.providers.flashinfer import FlashInfer
from onchip.cli.bench.gpu.providers.onchip_gpu import OnchipGpu, OnchipSafe
from onchip.cli.bench.gpu.providers.torch_sdpa import (
    TorchCudnn,
    TorchEfficient,
    TorchFlash,
    TorchMath,
)
from onchip.cli.bench.gpu.providers.unfused import Unfused

_CLASSES: tuple[type[GpuProvider], ...] = (
    OnchipGpu,
    TorchFlash,
    TorchCudnn,
    TorchEfficient,
    TorchMath,
    Unfused,
    FlashAttn2,
    FlashAttn3,
    FlashAttn4,
    FlashInfer,
    OnchipSafe,
)
PROVIDERS: dict[str, type[GpuProvider]] = {provider.name: provider for provider in _CLASSES}

__all__ = ["PROVIDERS", "GpuProvider"]
