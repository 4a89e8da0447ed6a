# SPDX-License-Identifier: Apache-2.0
"""The Hopper forward kernels against the reference: instances, layouts, options, bits, streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hopper
import onchip
from casefile import Array, Case
from comparison import expect_right
from hopper import WIDTHS, dense, expect_case, need_hopper, packed, planned
from kinds import GPU_KINDS, Kind
from on_gpu import normal, torch
from poison import poisoned_allocations
from problems import eighths

# Frameworks warn about this and that of a machine; it is not what is tested here.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

SOFTMAX = ("auto", "safe")
OTHER_WIDTHS = [
    (8, 8),
    (40, 40),
    (72, 80),
    (104, 120),
    (136, 128),
    (136, 136),
    (248, 200),
    (256, 8),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (170, 5)},
    {"window": (0, 130)},
    {"window": (300, -1), "softcap": 3.0},
    {"causal": True, "scale": 0.5},
]


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    """A Hopper GPU, and NaN in all that is allocated for a call."""
    need_hopper()
    with poisoned_allocations():
        yield


@pytest.fixture(params=hopper.KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return GPU_KINDS[request.param]()


def name_of(options: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in options.items()) or "full"


# ---------------------------------------------------------------- instances and options


@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
@pytest.mark.parametrize("width", WIDTHS)
def test_instances(width: tuple[int, int], options: dict[str, Any], kind: Kind) -> None:
    case = dense(np.random.default_rng(width), 300, 721, width, **options)
    assert planned(case, kind.dtype).backend == "sm90"
    expect_case(case, kind)


@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=name_of)
@pytest.mark.parametrize("width", OTHER_WIDTHS)
def test_other_widths_are_filled_up_with_zeros(
    width: tuple[int, int], options: dict[str, Any], kind: Kind
) -> None:
    case = dense(np.random.default_rng(width), 260, 421, width, **options)
    assert planned(case, kind.dtype).backend == "sm90"
    expect_case(case, kind)


@pytest.mark.parametrize("given", ["alibi_slopes", "sinks", "both"])
@pytest.mark.parametrize("width", [(64, 64), (128, 128), (256, 256)])
def test_slopes_and_sinks(width: tuple[int, int], given: str, kind: Kind) -> None:
    rng = np.random.default_rng(5)
    case = dense(rng, 300, 500, width, causal=True)
    if given != "sinks":
        case.inputs["alibi_slopes"] = eighths(rng, 4) / 8
    if given != "alibi_slopes":
        case.inputs["sinks"] = 2 * eighths(rng, 4)
    expect_case(case, kind)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (70, 9)}], ids=name_of)
@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-50])
def test_scales_of_the_sm80_kernels(scale: float, options: dict[str, Any], kind: Kind) -> None:
    """One that float32 rounds to 0 hides no less than any other."""
    case = dense(np.random.default_rng(15), 150, 333, scale=scale, **options)
    expect_case(case, kind)


# Around the edges of every tile: 128 and 256 rows of 64 each, 64 and 128 keys.
@pytest.mark.parametrize("width", [(64, 64), (128, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 127, 128, 129, 193, 255, 256, 257])
def test_lengths_around_a_tile(rows: int, causal: bool, width: tuple[int, int], kind: Kind) -> None:
    for keys in (1, 63, 64, 65, 128, 129, 257, 384):
        expect_case(dense(np.random.default_rng(rows), rows, keys, width, causal=causal), kind)


@pytest.mark.parametrize("heads", [(1, 1), (8, 1), (64, 1)], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 5, 64, 191, 192, 193])
@pytest.mark.parametrize("causal", [False, True])
def test_many_keys(rows: int, heads: tuple[int, int], causal: bool, kind: Kind) -> None:
    """From 8192 keys on D 64 without a mask has a tile of its own, of 192 rows."""
    if rows * heads[0] > 1000:
        rows = max(rows // 16, 1)
    case = dense(np.random.default_rng(rows), rows, 8200, (64, 64), heads, causal=causal)
    expect_case(case, kind)


@pytest.mark.parametrize(
    "heads", [(1, 1), (3, 3), (6, 2), (8, 2), (16, 1), (64, 1), (66, 1), (128, 1)]
)
@pytest.mark.parametrize("rows", [1, 5, 50, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_groups_of_heads(heads: tuple[int, int], rows: int, causal: bool, kind: Kind) -> None:
    """Packed into one tile where sequences are short and the group is a power of two."""
    rng = np.random.default_rng(rows)
    case = dense(rng, rows, 333, heads=heads, batch=2, causal=causal)
    case.inputs["sinks"] = eighths(rng, heads[0])
    expect_case(case, kind)


def test_rows_without_keys(kind: Kind) -> None:
    for rows, keys, options in [
        (500, 200, {"causal": True}),
        (700, 90, {"window": (3, 0)}),
        (5, 0, {}),
        (0, 5, {}),
    ]:
        expect_case(dense(np.random.default_rng(1), rows, keys, **options), kind)


# ---------------------------------------------------------------- packed sequences

LENGTHS = [(70, 70), (0, 9), (1, 1), (400, 500), (129, 64), (9, 0), (200, 130), (64, 720)]
USED = [(70, 3), (0, 9), (1, 0), (300, 450), (0, 64), (9, 0), (200, 129), (1, 700)]


@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
@pytest.mark.parametrize("used", [None, USED], ids=["all", "used"])
def test_packed_sequences(
    used: list[tuple[int, int]] | None, options: dict[str, Any], kind: Kind
) -> None:
    case = packed(np.random.default_rng(2), LENGTHS, used=used, **options)
    assert planned(case, kind.dtype).backend == "sm90"
    expect_case(case, kind)


@pytest.mark.parametrize("width", WIDTHS)
def test_packed_instances(width: tuple[int, int], kind: Kind) -> None:
    case = packed(np.random.default_rng(3), LENGTHS, width, used=USED, causal=True)
    expect_case(case, kind)


@pytest.mark.parametrize("heads", [(8, 2), (6, 2), (16, 1)])
def test_packed_groups_of_heads(heads: tuple[int, int], kind: Kind) -> None:
    short = [(5, 100), (0, 3), (17, 17), (1, 300), (40, 33)]
    for lengths in (short, LENGTHS):
        expect_case(packed(np.random.default_rng(4), lengths, heads=heads, causal=True), kind)


@pytest.mark.parametrize("used", [False, True], ids=["all", "used"])
@pytest.mark.parametrize("heads", [(8, 2), (6, 2), (16, 1), (64, 1)])
@pytest.mark.parametrize("width", WIDTHS)
def test_packed_groups_that_are_known_to_be_short(
    width: tuple[int, int], heads: tuple[int, int], used: bool, kind: Kind
) -> None:
    """With `max_seqlen_q`, a tile has several heads of a packed sequence too."""
    lengths = [(5, 100), (0, 3), (17, 17), (1, 300), (40, 33), (31, 0)]
    counts = [(3, 99), (0, 0), (17, 5), (0, 300), (39, 33), (31, 0)] if used else None
    case = packed(np.random.default_rng(16), lengths, width, heads, counts, causal=True)
    for softmax in SOFTMAX:
        got = hopper.results(case, kind, softmax=softmax, max_seqlen_q=40)
        expect_right(case, got, kind.dtype)


def test_used_lengths_of_a_dense_batch(kind: Kind) -> None:
    """NaN behind the keys and queries that count; rows that do not count are zeros."""
    rng = np.random.default_rng(6)
    case = dense(rng, 200, 300, batch=3)
    used_q, used_k = np.array([200, 77, 0], np.int32), np.array([131, 300, 5], np.int32)
    lengths = {"cu_seqlens_q": np.arange(4) * 200, "cu_seqlens_k": np.arange(4) * 300}
    inputs = {name: x.reshape(-1, *x.shape[2:]).copy() for name, x in case.inputs.items()}
    for b in range(3):
        inputs["q"][200 * b + used_q[b] : 200 * (b + 1)] = np.nan
        for name in "kv":
            inputs[name][300 * b + used_k[b] : 300 * (b + 1)] = np.nan
    given = {name: x.astype(np.int32) for name, x in lengths.items()}
    inputs |= given | {"seqused_q": used_q, "seqused_k": used_k}
    got = expect_case(Case("used", "varlen", inputs, {"causal": True}, {}, 0.0), kind)
    assert (got["out"][277:400] == 0).all()
    assert (got["lse"][:, 400:] == -np.inf).all()


# ---------------------------------------------------------------- memory


def attention(q: Any, k: Any, v: Any, **options: Any) -> list[Any]:
    return list(onchip.attention(q, k, v, **options, return_lse=True))


def equal(got: list[Any], expected: list[Any]) -> bool:
    return all(torch().equal(a, b) for a, b in zip(got, expected, strict=True))


def three(rows: int, keys: int, dim: int, dtype: str = "bfloat16", batch: int = 2) -> list[Any]:
    shapes = [(batch, rows, 4, dim), (batch, keys, 2, dim), (batch, keys, 2, dim)]
    return [normal(*shape, seed=n, dtype=dtype) for n, shape in enumerate(shapes)]


def test_strides_that_tma_follows_change_no_bit() -> None:
    x = three(300, 421, 128)
    expected = attention(*x, causal=True)
    by_heads = [y.transpose(1, 2).contiguous().transpose(1, 2) for y in x]
    assert equal(attention(*by_heads, causal=True), expected)
    wide = [torch().full((*y.shape[:-1], 136), torch().nan, dtype=y.dtype).cuda() for y in x]
    for y, source in zip(wide, x, strict=True):
        y[..., :128] = source
    assert equal(attention(*(y[..., :128] for y in wide), causal=True), expected)
    together = torch().cat([x[1], x[2]], dim=2)
    assert equal(attention(x[0], together[:, :, :2], together[:, :, 2:], causal=True), expected)


def moved(x: Any, elements: int) -> Any:
    """The same values that many elements behind an address which is a multiple of 256."""
    memory = x.new_empty(x.numel() + elements)
    y = memory[elements:].view(x.shape)
    y.copy_(x)
    return y


@pytest.mark.parametrize("which", ["q", "k", "v", "out", "all"])
def test_addresses_that_tma_cannot_read(which: str, kind: Kind) -> None:
    """No plan knows the address: the launch falls back to sm80, whose results are as exact."""
    case = dense(np.random.default_rng(7), 200, 333, causal=True)
    given = {name: kind.make(case.inputs[name]) for name in "qkv"}
    given["out"] = torch().empty_like(given["q"])
    for name in given if which == "all" else [which]:
        given[name] = moved(given[name], 1)
        assert given[name].data_ptr() % 16 != 0
    out, lse = onchip.attention(**given, causal=True, return_lse=True)
    expect_right(case, {"out": kind.back(out), "lse": kind.back(lse)}, kind.dtype)


def test_whole_addresses_change_no_bit() -> None:
    x = three(300, 421, 64)
    expected = attention(*x)
    for elements in (8, 24, 64):
        assert equal(attention(*(moved(y, elements) for y in x)), expected)


def test_nothing_is_written_beside_the_results(kind: Kind) -> None:
    case = dense(np.random.default_rng(8), 131, 200, (128, 104), batch=2)
    q, k, v = (kind.make(case.inputs[name]) for name in "qkv")
    memory = torch().full((2, 134, 5, 112), 7.0, dtype=q.dtype).cuda()
    out = memory[:, 2:133, :4, :104]
    _, lse = onchip.attention(q, k, v, out=out, return_lse=True)
    expect_right(case, {"out": kind.back(out), "lse": kind.back(lse)}, kind.dtype)
    out.fill_(7.0)
    assert (memory == 7.0).all()


# ---------------------------------------------------------------- NaN


def with_nan(case: Case, name: str, at: tuple[int, int, int]) -> Case:
    """In one element of the first sequence."""
    inputs = {n: x.copy() for n, x in case.inputs.items()}
    inputs[name][(0, *at)] = np.nan
    return Case("nan", case.op, inputs, case.options, {}, 0.0)


def rows_of(case: Case, got: dict[str, Array], rows: slice, dtype: str) -> None:
    """The 2x rule for some rows of a causal problem with as many rows as keys."""
    inputs = {"q": case.inputs["q"][:, rows], **{n: case.inputs[n][:, : rows.stop] for n in "kv"}}
    part = Case("rows", "dense", inputs, case.options, {}, 0.0)
    expect_right(part, {"out": got["out"][:, rows], "lse": got["lse"][:, :, rows]}, dtype)


def test_nan_in_q_and_k_reach_the_rows_that_see_them(kind: Kind) -> None:
    """And no other row, of the same tile either, which is computed again but once."""
    case = dense(np.random.default_rng(9), 700, 700, causal=True)
    expect_case(with_nan(case, "q", (301, 1, 7)), kind)
    expect_case(with_nan(case, "k", (301, 1, 7)), kind)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("softmax", SOFTMAX)
def test_nan_in_v_reaches_no_tile_that_ends_before_it(
    value: float, softmax: str, kind: Kind
) -> None:
    case = dense(np.random.default_rng(10), 700, 700, heads=(2, 2), causal=True)
    odd = with_nan(case, "v", (600, 1, 3))
    odd.inputs["v"][0, 600, 1, 3] = value
    got = hopper.results(odd, kind, softmax=softmax)
    tile = planned(case, kind.dtype).tile_q
    rows_of(case, got, slice(0, 600 // tile * tile), kind.dtype)
    assert not np.isfinite(got["out"][0, 600:, 1, 3]).any()
    assert np.isfinite(got["out"][0, :, 0]).all()
    assert np.isfinite(got["lse"]).all()


# ---------------------------------------------------------------- bits


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 5.0}], ids=name_of)
def test_repeats_bit_for_bit(dim: int, options: dict[str, Any], dtype: str) -> None:
    """Tiles go to whichever block is free: more of them than multiprocessors."""
    q, k, v = three(1500, 1500, dim, dtype, batch=12)
    q[:, 700:710] *= 40  # some tiles are computed twice
    first = attention(q, k, v, **options)
    for _ in range(8):
        assert equal(attention(q, k, v, **options), first)


@pytest.mark.parametrize("rows", [3, 200])
def test_a_row_does_not_depend_on_its_neighbours_in_the_batch(rows: int) -> None:
    q, k, v = (
        normal(5, rows, 8, 128),
        normal(5, 700, 2, 128, seed=1),
        normal(5, 700, 2, 128, seed=2),
    )
    k[1] *= 100  # tiles of other sequences are lost
    whole = attention(q, k, v, causal=True)
    for b in range(5):
        part = slice(b, b + 1)
        alone = attention(q[part], k[part], v[part], causal=True)
        assert equal(alone, [x[part] for x in whole])


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("neighbours", [[3] * 40, [900], [0, 64, 129]])
@pytest.mark.parametrize("longest", [None, 3, 900])
def test_a_row_does_not_depend_on_how_it_is_packed(
    longest: int | None, neighbours: list[int], group: int, dim: int
) -> None:
    """Short and long neighbours must not change how a sequence is cut into tiles."""
    length = 500
    q = normal(length, 2 * group, dim)
    k, v = (normal(length, 2, dim, seed=s) for s in (1, 2))

    def run(*lengths: int) -> list[Any]:
        ends = list(itertools.accumulate(lengths))
        cu = torch().tensor([0, *ends], dtype=torch().int32, device="cuda")
        filled = []
        for seed, x in enumerate((q, k, v)):
            rest = normal(ends[-1] - length, *x.shape[1:], seed=7 + seed)
            filled.append(torch().cat([rest[: ends[0]], x, rest[ends[0] :]]))
        given = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest}
        out, lse = onchip.attention_varlen(*filled, **given, causal=True, return_lse=True)
        part = slice(ends[0], ends[0] + length)
        return [out[part], lse[:, part]]

    assert equal(run(1, length, *neighbours), run(1, length))


# ---------------------------------------------------------------- streams


def test_graph_replays_with_lost_tiles_and_without() -> None:
    """The count of tiles begins anew in each replay."""
    x = three(700, 700, 128, batch=12)
    calm = [y.clone() for y in x]
    peaked = [x[0] * 40, x[1], x[2]]
    expected = [attention(*y, causal=True) for y in (calm, peaked)]
    torch().cuda.synchronize()
    graph = torch().cuda.CUDAGraph()
    with torch().cuda.graph(graph):
        got = attention(*x, causal=True)
    for turn in (1, 0, 1, 1, 0, 0):
        x[0].copy_((calm, peaked)[turn][0])
        graph.replay()
        hopper.ends()
        assert equal(got, expected[turn])


def test_many_streams_at_once() -> None:
    """Each call has its own count of tiles."""
    problems = [three(600 + 40 * n, 700, 128, batch=10) for n in range(8)]
    for n, problem in enumerate(problems):
        problem[0].mul_(1 + 40 * (n % 2))
    expected = [attention(*problem, causal=True) for problem in problems]
    torch().cuda.synchronize()
    streams = [torch().cuda.Stream() for _ in problems]
    got: list[list[Any]] = []
    for _ in range(5):
        got = []
        for stream, problem in zip(streams, problems, strict=True):
            with torch().cuda.stream(stream):
                got.append(attention(*problem, causal=True))
    for stream in streams:
        stream.synchronize()
    for a, b in zip(got, expected, strict=True):
        assert equal(a, b)


def test_more_tiles_than_blocks(kind: Kind) -> None:
    """A block takes several tiles, some of them without rows or keys."""
    lengths = [(n * 37 % 140, n * 53 % 260) for n in range(120)]
    expect_case(packed(np.random.default_rng(11), lengths, (64, 64), (2, 1), causal=True), kind)
