# SPDX-License-Identifier: Apache-2.0
"""Every file of tests/cases, in every kind of array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import casefile
import library
import onchip
import oracle
from kinds import Kind


@pytest.mark.parametrize("path", casefile.FILES, ids=lambda path: path.stem)
def test_case(path: Path, kind: Kind) -> None:
    case = casefile.read(path)
    if case.op == "dropout_mask":
        mask = onchip.dropout_mask(**case.options)
        np.testing.assert_array_equal(np.asarray(mask), case.expect["keep"])
        return
    got = library.results(case, kind)
    assert got.keys() == case.expect.keys()
    if kind.dtype in ("float64", "float32"):
        # The files hold float64 results rounded to float32.
        tolerance = case.tolerance if kind.dtype == "float32" else 1e-7
        for name, expected in case.expect.items():
            np.testing.assert_allclose(
                got[name], expected, rtol=tolerance, atol=tolerance, err_msg=name
            )
        return
    naive = case.reference(kind.dtype)
    for name, expected in case.expect.items():
        if name == "lse":
            np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-4, err_msg=name)
        else:
            oracle.check(name, got[name], expected, naive[name], precision=kind.dtype)
