# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from kinds import KINDS, Kind, gpu_params, kind_of


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every library of arrays, in every dtype that it has; skips those not installed."""
    made: Kind = KINDS[request.param]()
    return made


@pytest.fixture(params=[*sorted(KINDS), *gpu_params()])
def any_kind(request: pytest.FixtureRequest) -> Kind:
    """The same, and those on a GPU."""
    return kind_of(request.param)
