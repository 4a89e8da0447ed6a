# SPDX-License-Identifier: Apache-2.0
"""The reference itself: against the files of right answers and against finite differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import casefile
import oracle
from comparison import GRIDS
from problems import RandomChoices, random_case

Array = np.ndarray[Any, Any]


def test_there_are_cases() -> None:
    assert casefile.FILES


@pytest.mark.parametrize("path", casefile.FILES, ids=lambda p: p.stem)
def test_case(path: Path) -> None:
    case = casefile.read(path)
    if case.op == "dropout_mask":
        got: dict[str, Any] = {"keep": oracle.dropout_mask(**case.options)}
    else:
        got = case.reference()
    # The files hold float64 results rounded to float32: half a unit in the last place.
    for name, expected in case.expect.items():
        np.testing.assert_allclose(got[name], expected, rtol=7e-8, atol=1e-9, err_msg=name)


def problem(kind: str, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Any]]:
    """Differentiable tensors, and the options that go with them."""
    heads, heads_kv, d, dv = 4, 2, 5, 3
    lead_q: tuple[int, ...] = (2, 7)
    lead_k: tuple[int, ...] = (2, 9)
    lse_shape: tuple[int, ...] = (2, heads, 7)
    options: dict[str, Any] = {}
    if kind == "packed":
        lead_q, lead_k, lse_shape = (9,), (12,), (heads, 9)
        options = {
            "cu_seqlens_q": np.array([0, 5, 5, 8]),
            "cu_seqlens_k": np.array([0, 4, 6, 12]),
            "seqused_q": np.array([4, 0, 3]),
            "seqused_k": np.array([4, 2, 5]),
            "causal": True,
            "dropout_p": 0.3,
            "seed": 5,
        }
    tensors = {
        "q": rng.normal(size=(*lead_q, heads, d)),
        "k": rng.normal(size=(*lead_k, heads_kv, d)),
        "v": rng.normal(size=(*lead_k, heads_kv, dv)),
        "dout": rng.normal(size=(*lead_q, heads, dv)),
        "dlse": rng.normal(size=lse_shape),
        "sinks": rng.normal(size=heads),
    }
    if kind == "everything":
        options = {
            "window": (4, 1),
            "softcap": 1.5,
            "scale": 0.7,
            "dropout_p": 0.4,
            "seed": 2**63 + 11,
            "offset": 3,
            "alibi_slopes": rng.normal(size=(2, heads)),
        }
        tensors["bias"] = rng.normal(size=(2, heads, 7, 9))
    elif kind == "column bias":
        options = {"causal": True, "alibi_slopes": rng.normal(size=heads)}
        tensors["bias"] = rng.normal(size=(1, heads, 1, 9))
    elif kind == "row bias":
        options = {"window": (-1, 1)}
        tensors["bias"] = rng.normal(size=(2, 1, 7, 1))
    return tensors, options


@pytest.mark.parametrize("kind", ["everything", "column bias", "row bias", "packed"])
def test_gradients_are_finite_differences(kind: str) -> None:
    rng = np.random.default_rng(7)
    tensors, options = problem(kind, rng)
    dout, dlse = tensors.pop("dout"), tensors.pop("dlse")

    def loss(x: dict[str, Array]) -> float:
        out, lse = oracle.forward(**x, **options)
        return float((dout * out).sum() + (dlse * np.where(np.isinf(lse), 0, lse)).sum())

    gradients = oracle.backward(dout, dlse=dlse, **tensors, **options)._asdict()
    for name, tensor in tensors.items():
        for _ in range(4):
            direction = rng.normal(size=tensor.shape)
            step = 1e-5
            up = loss({**tensors, name: tensor + step * direction})
            down = loss({**tensors, name: tensor - step * direction})
            slope = (gradients[f"d{name}"] * direction).sum()
            assert abs(slope) > 1e-4, name
            assert slope == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_the_naive_computation_is_near_but_not_equal(precision: str) -> None:
    rng = np.random.default_rng(1)
    tensors, options = problem("everything", rng)
    dout, dlse = tensors.pop("dout"), tensors.pop("dlse")
    exact = oracle.forward(**tensors, **options)[0]
    naive = oracle.forward(**tensors, **options, precision=precision)[0]
    dq = oracle.backward(dout, dlse=dlse, **tensors, **options).dq
    naive_dq = oracle.backward(dout, dlse=dlse, **tensors, **options, precision=precision).dq
    bound = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[precision]
    for reference, other in ((exact, naive), (dq, naive_dq)):
        assert 0 < np.abs(reference - other).max() < bound


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_the_draws_of_the_yardstick_are_of_one_size(precision: str) -> None:
    """No grid is coarser than another, and the worst of four is no loose bound."""
    ratios: list[list[float]] = []
    for number in range(24):
        rng = np.random.default_rng((7, number))
        case = random_case(RandomChoices(rng), rng, 100, gpu=True)
        if precision == "float32":  # 24 bits, where no product is exact
            for name in {"q", "k", "v", "k_cache", "v_cache", "dout"} & case.inputs.keys():
                case.inputs[name] = (1.1 * case.inputs[name]).astype(np.float32).astype(np.float64)
        exact = case.reference()
        draws = [case.reference(precision, grid) for grid in GRIDS]
        for name in {"out", "dq", "dk", "dv"} & exact.keys():
            errors = [np.nanmax(np.abs(draw[name] - exact[name]), initial=0) for draw in draws]
            if errors[0] > 0:
                ratios.append([error / errors[0] for error in errors])
    assert len(ratios) > 40
    assert (abs(np.log2(np.median(ratios, axis=0))) < 0.5).all()
    assert np.median(np.max(ratios, axis=1)) < 1.75


def test_bfloat16_rounds_to_nearest_even() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    x = np.concatenate([x, np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1 + 2**-8])])
    expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(oracle.to_bfloat16(x), expected)
