# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from kinds import KINDS, Kind


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every library of arrays, in every dtype that it has; skips those not installed."""
    made: Kind = KINDS[request.param]()
    return made
