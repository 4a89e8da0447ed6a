# SPDX-License-Identifier: Apache-2.0
"""Data made to break the optimistic softmax of the Hopper kernels.

Blocks of keys go from the last to the first, and weights stay relative to an earlier great score
until a later block passes it by much. So what leads is an early key here, or one after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import hopper
import oracle
from casefile import Array, Case
from comparison import expect_right
from hopper import WIDTHS, dense, expect_case, need_hopper, packed, planned, results
from kinds import GPU_KINDS, Kind
from poison import poisoned_allocations

# Frameworks warn about this and that of a machine; it is not what is tested here.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

ROWS, KEYS = 200, 700
SCALE, QUERY = 0.5, 4.0  # large enough that float16 holds the unscaled products
LEADS = (2.0, 3.0, 5.0, 8.0, 10.0, 20.0, 60.0, 80.0, 90.0, 130.0, 200.0, 1e4)  # nats
LOST = 83.0  # nats: a tile whose rows are led by more in one block is computed again


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    """A Hopper GPU, and NaN in all that is allocated for a call."""
    need_hopper()
    with poisoned_allocations():
        yield


@pytest.fixture(params=hopper.KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return GPU_KINDS[request.param]()


def at(key: int) -> Array:
    return np.eye(1, KEYS, key)[0]


PROFILES = {
    "sink": at(0),
    "spike in the middle": at(KEYS // 2),
    "spike in the last block": at(KEYS - 1),
    "a block": np.where(np.arange(KEYS) // 128 == 1, 1.0, 0.0),
    "ascending": np.linspace(0, 1, KEYS),
    "descending": np.linspace(1, 0, KEYS),
    "all but the last blocks": np.where(np.arange(KEYS) < KEYS - 256, 1.0, 0.0),
}


def lift(case: Case, nats: Array, rows: Sequence[int] | slice = slice(None)) -> Case:
    """The same with scores raised by about `nats` of each key, for these rows of q."""
    inputs = {name: x.copy() for name, x in case.inputs.items()}
    # Of both 16-bit types' values, in multiples of 1/8.
    keys = oracle.to_bfloat16(np.round(nats / (SCALE * QUERY) * 8) / 8)
    inputs["k"][..., 0] = keys[:, None]
    inputs["q"] *= 0.125 / SCALE  # scores of the other dimensions are those of a scale of 1/8
    inputs["q"][..., 0] = 0
    inputs["q"][..., rows, :, 0] = QUERY
    return dataclasses.replace(case, inputs=inputs, options={**case.options, "scale": SCALE})


def lifted(
    lead: float, profile: str = "sink", width: tuple[int, int] = (128, 128), **options: Any
) -> Case:
    return lift(dense(np.random.default_rng(1), ROWS, KEYS, width, (2, 1), **options),
                lead * PROFILES[profile])  # fmt: skip


def expect_exact(case: Case, kind: Kind) -> dict[str, Array]:
    """expect_case, and a nearer lse."""
    got = expect_case(case, kind)
    np.testing.assert_allclose(got["lse"], case.reference()["lse"], rtol=1e-5, atol=1e-5)
    return got


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("lead", LEADS)
def test_keys_ahead(lead: float, profile: str, kind: Kind) -> None:
    expect_exact(lifted(lead, profile), kind)


@pytest.mark.parametrize("width", [(64, 64), (128, 128)])
@pytest.mark.parametrize("block", range(KEYS // 64 + 1))
@pytest.mark.parametrize("lead", [lead for lead in LEADS if lead < LOST])
def test_one_key_ahead_in_each_block(
    lead: float, block: int, width: tuple[int, int], kind: Kind
) -> None:
    key = min(64 * block + 37, KEYS - 1)
    expect_exact(lift(dense(np.random.default_rng(11), ROWS, KEYS, width, (2, 1)), lead * at(key)),
                 kind)  # fmt: skip


@pytest.mark.parametrize("second", [2, 60, 350, 600])
@pytest.mark.parametrize("less", [0.0, 0.25, 2.0])
@pytest.mark.parametrize("lead", [5.0, 20.0, 80.0, 200.0])
def test_two_keys_ahead(lead: float, less: float, second: int, kind: Kind) -> None:
    """By as much, or the one that comes later by a little more: in one block, or far apart."""
    case = dense(np.random.default_rng(12), ROWS, KEYS, heads=(2, 1))
    expect_exact(lift(case, lead * at(1) + (lead - less) * at(second)), kind)


@pytest.mark.parametrize("second", [3, 499])
@pytest.mark.parametrize("lead", np.arange(78.0, 94.0, 0.5))
def test_the_end_of_the_range(lead: float, second: int, kind: Kind) -> None:
    """Where what came before is multiplied by next to nothing, or cannot be."""
    case = dense(np.random.default_rng(14), ROWS, KEYS, (64, 64), heads=(2, 1))
    expect_exact(lift(case, lead * (at(500) + at(second))), kind)


@pytest.mark.parametrize("width", [(64, 64), (128, 128), (256, 256)])
@pytest.mark.parametrize("whole", [False, True], ids=["one key", "every key"])
@pytest.mark.parametrize("step", [0.5, 1.0, 2.0, 3.0, 8.0, 50.0])
def test_a_staircase(step: float, whole: bool, width: tuple[int, int], kind: Kind) -> None:
    """Every block is ahead of those computed before it, far beyond float32's range in the end."""
    count, size = 40, 128
    key = np.arange(count * size)
    nats = step * (count - 1 - key // size)
    if not whole:
        nats = np.where(key % size == 50, nats, -4.0)
    case = dense(np.random.default_rng(13), 70, count * size, width, (2, 1))
    expect_exact(lift(case, nats), kind)


@pytest.mark.parametrize("lead", [3.0, 10.0, 90.0])
@pytest.mark.parametrize("profile", ["sink", "descending", "a block"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_instance(width: tuple[int, int], profile: str, lead: float, kind: Kind) -> None:
    expect_case(lifted(lead, profile, width), kind)


@pytest.mark.parametrize("lead", [3.0, 20.0, 90.0])
@pytest.mark.parametrize("rows", [[70], range(150)], ids=["one", "many"])
def test_the_instance_of_long_sequences(rows: Sequence[int], lead: float, kind: Kind) -> None:
    case = dense(np.random.default_rng(17), 150, 8200, (64, 64), (2, 1))
    case = lift(case, lead * np.eye(1, 8200)[0], rows)
    assert planned(case, kind.dtype).kernel.endswith("_long")
    got = expect_exact(case, kind)
    if lead > LOST and len(rows) > 1:
        assert np.array_equal(got["out"], results(case, kind, softmax="safe")["out"])


@pytest.mark.parametrize("profile", ["sink", "descending", "spike in the middle"])
@pytest.mark.parametrize("options", [{"causal": True}, {"window": (450, 0)}, {"window": (60, 300)}])
@pytest.mark.parametrize("lead", [3.0, 10.0, 80.0, 200.0])
def test_keys_ahead_under_a_mask(
    lead: float, options: dict[str, Any], profile: str, kind: Kind
) -> None:
    case = dense(np.random.default_rng(2), KEYS, KEYS, heads=(2, 1), **options)
    expect_case(lift(case, lead * PROFILES[profile]), kind)


@pytest.mark.parametrize("row", [0, 77, 199])
@pytest.mark.parametrize("lead", LEADS)
def test_one_row_of_a_tile(lead: float, row: int, kind: Kind) -> None:
    """By the bound of this row alone, too."""
    rows = [row]
    case = lift(dense(np.random.default_rng(3), ROWS, KEYS, heads=(2, 1)), lead * at(0), rows)
    got = expect_exact(case, kind)
    alone = dataclasses.replace(case, inputs={**case.inputs, "q": case.inputs["q"][:, rows]})
    part = {"out": got["out"][:, rows], "lse": got["lse"][:, :, rows]}
    expect_right(alone, part, kind.dtype)


@pytest.mark.parametrize("deviation", [2, 4, 8, 32])
@pytest.mark.parametrize("causal", [False, True])
def test_peaked_scores(deviation: int, causal: bool, kind: Kind) -> None:
    case = dense(np.random.default_rng(4), KEYS, KEYS, causal=causal)
    case.inputs["q"] *= deviation
    expect_case(case, kind)


# ---------------------------------------------------------------- scores of -inf

NEVER = -np.inf


def hidden(keys: Array, rest: float, **options: Any) -> Case:
    """Scores of these keys are -inf, those of the others about `rest`, for every row."""
    rows = KEYS if options else ROWS
    case = lift(dense(np.random.default_rng(5), rows, KEYS, heads=(2, 1), **options),
                np.where(keys, 0, rest))  # fmt: skip
    case.inputs["k"][0, keys, :, 0] = NEVER
    return case


@pytest.mark.parametrize("rest", [0.0, 60.0, 300.0, -60.0, -300.0])
@pytest.mark.parametrize("count", [1, 60, 130, 300, KEYS])
def test_the_first_blocks_are_hidden(count: int, rest: float, kind: Kind) -> None:
    """Weights are relative to 0 then, and may be far too small: such rows are lost too."""
    expect_case(hidden(np.arange(KEYS) >= KEYS - count, rest), kind)


@pytest.mark.parametrize("options", [{"causal": True}, {"window": (500, 0)}, {"window": (600, 9)}])
@pytest.mark.parametrize("rest", [0.0, 60.0, -300.0])
def test_the_first_blocks_are_hidden_under_a_mask(
    options: dict[str, Any], rest: float, kind: Kind
) -> None:
    """On the left of a window the running maximum is back, and must keep what was summed before."""
    expect_case(hidden(np.arange(KEYS) >= KEYS - 300, rest, **options), kind)


def test_every_other_key_is_hidden(kind: Kind) -> None:
    expect_case(hidden(np.arange(KEYS) % 2 == 0, 0.0), kind)


# ---------------------------------------------------------------- sinks, values


@pytest.mark.parametrize("lead", [0.0, 20.0, 90.0])
@pytest.mark.parametrize("sink", [-80.0, 10.0, 25.0, 95.0])
def test_sinks(sink: float, lead: float, kind: Kind) -> None:
    case = lifted(lead)
    case.inputs["sinks"] = np.array([sink, -np.inf])
    expect_case(case, kind)


@pytest.mark.parametrize("profile", ["sink", "descending", "spike in the last block"])
@pytest.mark.parametrize(
    "power", [-116, 118]
)  # of 2: 1e-35 and 3e35, with values up to 4 times that
@pytest.mark.parametrize("lead", [0.0, 2.0, 3.0, 5.0, 8.0, 20.0, 45.0, 60.0, 80.0, 200.0])
def test_tiny_and_huge_values(lead: float, power: int, profile: str) -> None:
    """Exact powers of two: the bound is that of the same problem without them."""
    kind = GPU_KINDS["torch-cuda-bfloat16"]()
    case = lifted(lead, profile)
    scaled = dataclasses.replace(
        case, inputs={**case.inputs, "v": np.ldexp(case.inputs["v"], power)}
    )
    for softmax in ("auto", "safe"):
        got = results(scaled, kind, softmax=softmax)
        got["out"] = np.ldexp(got["out"], -power)
        expect_right(case, got, kind.dtype)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_what_is_not_finite_ends(name: str, value: float, kind: Kind) -> None:
    """Tiles that stay without a finite result are computed twice, and no more."""
    for lead in (0.0, 200.0):
        case = lifted(lead)
        case.inputs[name][..., 5] = value
        got = results(case, kind)
        assert np.array_equal(got["out"], results(case, kind)["out"], equal_nan=True)
        if np.isnan(value):
            assert np.isnan(got["out"][..., 5]).all()


# ---------------------------------------------------------------- bits

EVERY_TILE_IS_LOST = 200.0


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (700, 30)}])
@pytest.mark.parametrize("width", WIDTHS)
def test_lost_tiles_are_those_of_the_safe_softmax(
    width: tuple[int, int], options: dict[str, Any], kind: Kind
) -> None:
    case = lift(dense(np.random.default_rng(6), ROWS, KEYS, width, batch=2, **options),
                EVERY_TILE_IS_LOST * at(0))  # fmt: skip
    expect_same(results(case, kind), results(case, kind, softmax="safe"))


@pytest.mark.parametrize("heads", [(2, 2), (8, 2), (6, 2)])
def test_lost_tiles_of_packed_sequences(heads: tuple[int, int], kind: Kind) -> None:
    lengths = [(3, 300), (200, 256), (0, 5), (130, 400), (40, 200)]
    case = packed(np.random.default_rng(7), lengths, heads=heads)
    nats = np.zeros(len(case.inputs["k"]))
    nats[case.inputs["cu_seqlens_k"][:-1]] = EVERY_TILE_IS_LOST
    case = lift(case, nats)
    expect_same(expect_case(case, kind), results(case, kind, softmax="safe"))


@pytest.mark.parametrize("width", WIDTHS)
def test_only_lost_tiles_are_computed_again(width: tuple[int, int], kind: Kind) -> None:
    """One row of one tile loses its range: its tile has the bits of the safe softmax."""
    case = dense(np.random.default_rng(8), 900, KEYS, width, heads=(2, 2))
    row = 500
    one = lift(case, EVERY_TILE_IS_LOST * at(0), [row])
    one.inputs["q"][:, row, 1, 0] = 0  # of head 0 alone
    none = lift(case, EVERY_TILE_IS_LOST * at(0), [])
    tile = planned(case, kind.dtype).tile_q
    lost = np.zeros((900, 2), bool)
    lost[row // tile * tile : (row // tile + 1) * tile, 0] = True
    got, safe, usual = results(one, kind), results(one, kind, softmax="safe"), results(none, kind)
    for name, by_row in (("out", lambda x: x[0]), ("lse", lambda x: x[0].T)):
        ours, again, first = (by_row(x[name]) for x in (got, safe, usual))
        np.testing.assert_array_equal(ours[lost], again[lost], err_msg=name)
        np.testing.assert_array_equal(ours[~lost], first[~lost], err_msg=name)


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_that_do_not_count_move_no_base(width: tuple[int, int], kind: Kind) -> None:
    """Neither those behind `seqused_q` nor those of the next sequence, in the same tile."""
    rows = 70
    case = packed(np.random.default_rng(9), [(rows + 7, KEYS), (60, 400)], width, (2, 1),
                  used=[(rows, KEYS), (60, 400)])  # fmt: skip
    rest = np.random.default_rng(10).normal(size=case.inputs["q"][rows:].shape)
    got = []
    for gain in (0.0, 1.0, 30.0):
        inputs = {**case.inputs, "q": case.inputs["q"].copy()}
        inputs["q"][rows:] = gain * rest
        every = results(dataclasses.replace(case, inputs=inputs), kind)
        got.append({"out": every["out"][:rows], "lse": every["lse"][:, :rows]})
    expect_same(got[1], got[0])
    expect_same(got[2], got[0])


def expect_same(got: dict[str, Array], expected: dict[str, Array]) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
