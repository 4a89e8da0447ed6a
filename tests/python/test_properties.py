# SPDX-License-Identifier: Apache-2.0
"""Random shapes, strides, dtypes and options against the NumPy reference."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import library
import onchip
import oracle
from comparison import expect_right
from kinds import KINDS, Array, Kind
from problems import HypothesisChoices, awkward, random_case

EXAMPLES = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def with_awkward_strides(kind: Kind, rng: np.random.Generator) -> Kind:
    """NumPy: any strides. PyTorch has no negative ones, and gaps do not survive a conversion."""

    def scramble(make, x):  # type: ignore[no-untyped-def]
        made = make(x)
        if isinstance(made, np.ndarray):
            return awkward(made, rng, np.nan)
        order = [*rng.permutation(x.ndim - 1), x.ndim - 1]
        return make(np.ascontiguousarray(x.transpose(order))).permute(*np.argsort(order).tolist())

    return dataclasses.replace(
        kind,
        make=lambda x: scramble(kind.make, x),
        make_stats=lambda x: scramble(kind.make_stats, x),
    )


@pytest.mark.parametrize(
    "name",
    [f"numpy-{t}" for t in ("float32", "float64", "float16", "bfloat16")]
    + [f"torch-{t}" for t in ("float32", "bfloat16")],
)
@EXAMPLES
@given(data=st.data())
def test_agrees_with_the_reference(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]()
    rng = np.random.default_rng(data.draw(st.integers(0, 1000), label="seed"))
    case = random_case(HypothesisChoices(data), rng)
    got = library.results(case, with_awkward_strides(kind, rng))
    expect_right(case, got, kind.dtype)
    again = library.results(case, kind)
    for key, value in got.items():
        np.testing.assert_array_equal(again[key], value, err_msg=f"{key} depends on strides")


@EXAMPLES
@given(
    shape=st.tuples(*(st.integers(0, n) for n in (3, 3, 12, 40))),
    p=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 2**64 - 1),
)
def test_dropout_mask(shape: tuple[int, int, int, int], p: float, seed: int, offset: int) -> None:
    got = np.asarray(onchip.dropout_mask(shape, p, seed, offset))
    np.testing.assert_array_equal(got, oracle.dropout_mask(shape, p, seed, offset))


@EXAMPLES
@given(data=st.data(), name=st.sampled_from(["numpy-float32", "numpy-float64", "numpy-bfloat16"]))
def test_merged_parts_are_the_whole(data: st.DataObject, name: str) -> None:
    kind = KINDS[name]()
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    batch, rows, keys, heads, dim = (data.draw(st.integers(1, n)) for n in (2, 5, 60, 3, 20))
    cuts = sorted(data.draw(st.lists(st.integers(0, keys), max_size=4)))
    q = np.round(8 * rng.normal(size=(batch, rows, heads, dim))) / 8
    k, v = (np.round(8 * rng.normal(size=(batch, keys, heads, dim))) / 8 for _ in range(2))
    parts = [
        onchip.attention(
            kind.make(q), kind.make(k[:, low:high]), kind.make(v[:, low:high]), return_lse=True
        )
        for low, high in zip([0, *cuts], [*cuts, keys], strict=True)
    ]
    out, lse = onchip.merge_states(*zip(*parts, strict=True))
    exact, exact_lse = oracle.forward(q, k, v)
    naive = oracle.forward(q, k, v, precision=kind.dtype)[0]
    slack = 1e-12 if kind.dtype == "float64" else 1e-5
    oracle.check("out", kind.back(out), exact, naive, precision=kind.dtype, slack=slack)
    np.testing.assert_allclose(kind.back(lse), exact_lse, rtol=1e-5, atol=1e-5)


def test_the_worked_row() -> None:
    """docs/algorithm.md: scores (1, 2, 0, 3), in tiles of two keys."""
    scores = np.array([1.0, 2.0, 0.0, 3.0])
    values = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [1.0, 3.0]])
    expected = (0.795176, 2.200684)

    def attend(part: slice, **options: int) -> tuple[Array, Array]:
        q = np.ones((1, 1, 1, 1))
        k, v = scores[part].reshape(1, -1, 1, 1), values[part].reshape(1, -1, 1, 2)
        lengths = np.array([k.shape[1]], np.int32)
        out, lse = onchip.decode(q, k, v, seqlens_k=lengths, scale=1.0, return_lse=True, **options)
        return out, lse

    whole, lse = attend(slice(0, 4))
    np.testing.assert_allclose(whole.ravel(), expected, atol=5e-7)
    np.testing.assert_allclose(lse.ravel(), np.log(np.exp(scores).sum()), rtol=1e-14)
    split, _ = attend(slice(0, 4), split_size=2)
    np.testing.assert_allclose(split.ravel(), expected, atol=5e-7)
    tiles = [attend(slice(0, 2)), attend(slice(2, 4))]
    merged, merged_lse = onchip.merge_states(*zip(*tiles, strict=True))
    np.testing.assert_allclose(merged.ravel(), expected, atol=5e-7)
    np.testing.assert_allclose(merged_lse, lse, rtol=1e-14)
