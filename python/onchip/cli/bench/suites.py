# SPDX-License-Identifier: Apache-2.0
"""The suites by device."""

from typing import Any

from onchip.cli.bench.cpu.suite import CpuSuite
from onchip.cli.bench.gpu.suite import GpuSuite
from onchip.cli.bench.suite import Suite

SUITES: dict[str, Suite] = {suite.device: suite for suite in (CpuSuite(), GpuSuite())}


def suite_of(document: dict[str, Any]) -> Suite:
    """The suite that a document of results is from."""
    return SUITES[document["benchmark"]]
