# SPDX-License-Identifier: Apache-2.0
"""Random attention problems: one generator for hypothesis and for plain random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from hypothesis import strategies as st

from casefile import Case

Array = np.ndarray[Any, Any]
T = TypeVar("T")


class Choices(Protocol):
    def integer(self, low: int, high: int) -> int: ...
    def pick(self, options: Sequence[T]) -> T: ...


class RandomChoices:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high, endpoint=True))

    def pick(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]


class HypothesisChoices:
    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def integer(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def pick(self, options: Sequence[T]) -> T:
        return self.data.draw(st.sampled_from(options))


def eighths(rng: np.random.Generator, *shape: int) -> Array:
    """Normal values rounded to multiples of 1/8: exact in every dtype."""
    return np.clip(np.round(8 * rng.normal(size=shape)), -31, 31) / 8


class _Builder:
    def __init__(
        self, choices: Choices, rng: np.random.Generator, longest: int, gpu: bool = False
    ) -> None:
        self.c, self.rng, self.longest = choices, rng, longest
        self.op = choices.pick(["dense", "dense", "varlen", "varlen", "paged"])
        self.batch = choices.integer(0, 3)
        self.heads_kv = choices.integer(1, 2)
        self.heads = self.heads_kv * choices.integer(1, 3)
        # GPUs take multiples of 8.
        self.dim = choices.pick(
            [8, 16, 40, 64, 96, 128, 136, 256] if gpu else [1, 3, 8, 16, 40, 64, 129]
        )
        self.dim_v = choices.pick([self.dim, self.dim, 8 if gpu else 5, 32])
        self.inputs: dict[str, Array] = {}
        self.options: dict[str, Any] = {}

    def normal(self, *shape: int) -> Array:
        return eighths(self.rng, *shape)

    def lengths(self, count: int) -> list[int]:
        return [self.c.integer(0, self.longest) for _ in range(count)]

    def build(self) -> Case:
        {"dense": self.dense, "varlen": self.varlen, "paged": self.paged}[self.op]()
        self.mask()
        self.scores()
        # No choice to be shrunk: it must not change a result.
        self.options["softmax"] = "safe" if self.rng.random() < 0.25 else "auto"
        return Case(
            "random", self.op, self.inputs, self.options, {}, 0.0,
            deterministic=self.c.pick([False, True]), wide_bias=self.c.pick([False, True]),
        )  # fmt: skip

    def dense(self) -> None:
        rows, keys = self.lengths(2)
        self.rows, self.keys = rows, keys
        self.lse_shape: tuple[int, ...] = (self.batch, self.heads, rows)
        self.lead_q: tuple[int, ...] = (self.batch, rows)
        self.tensors((self.batch, keys), "k", "v")

    def tensors(self, lead_k: tuple[int, ...], k: str, v: str) -> None:
        self.inputs["q"] = self.normal(*self.lead_q, self.heads, self.dim)
        self.inputs[k] = self.normal(*lead_k, self.heads_kv, self.dim)
        self.inputs[v] = self.normal(*lead_k, self.heads_kv, self.dim_v)
        if self.op != "paged":
            self.inputs["dout"] = self.normal(*self.lead_q, self.heads, self.dim_v)
            if self.c.integer(0, 2) == 0:
                self.inputs["dlse"] = self.normal(*self.lse_shape)

    def varlen(self) -> None:
        self.batch = max(self.batch, 1)
        lengths_q, lengths_k = self.lengths(self.batch), self.lengths(self.batch)
        self.rows, self.keys = max(lengths_q), max(lengths_k)
        cu_q = np.concatenate([[0], np.cumsum(lengths_q)]).astype(np.int32)
        cu_k = np.concatenate([[0], np.cumsum(lengths_k)]).astype(np.int32)
        tail_q, tail_k = self.c.integer(0, 3), self.c.integer(0, 3)
        self.lead_q = (int(cu_q[-1]) + tail_q,)
        self.lse_shape = (self.heads, *self.lead_q)
        self.tensors((int(cu_k[-1]) + tail_k,), "k", "v")
        self.inputs |= {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
        used_q, used_k = lengths_q, lengths_k
        if self.c.integer(0, 2) == 0:
            used_q = [self.c.integer(0, n) for n in lengths_q]
            self.inputs["seqused_q"] = np.array(used_q, np.int32)
        if self.c.integer(0, 2) == 0:
            used_k = [self.c.integer(0, n) for n in lengths_k]
            self.inputs["seqused_k"] = np.array(used_k, np.int32)
        self.poison(cu_q, used_q, ["q", "dout"])
        self.poison(cu_k, used_k, ["k", "v"])

    def poison(self, starts: Array, used: list[int], names: list[str]) -> None:
        for name in names:
            unread = np.ones(len(self.inputs[name]), bool)
            for start, n in zip(starts[:-1], used, strict=True):
                unread[start : start + n] = False
            self.inputs[name][unread] = np.nan

    def paged(self) -> None:
        self.batch = max(self.batch, 1)
        self.rows = self.c.integer(1, 4)
        self.lead_q = (self.batch, self.rows)
        self.lse_shape = (self.batch, self.heads, self.rows)
        size, most = self.c.pick([1, 3, 16]), self.c.integer(1, 6)
        self.keys = size * most
        lengths = [self.c.integer(0, self.keys) for _ in range(self.batch)]
        pages = self.batch * most + self.c.integer(0, 2)
        table = self.rng.permutation(pages)[: self.batch * most].reshape(self.batch, most)
        self.tensors((pages, size), "k_cache", "v_cache")
        for name in ("k_cache", "v_cache"):
            unread = np.ones((pages, size), bool)
            for b, n in enumerate(lengths):
                token = np.arange(n)
                unread[table[b, token // size], token % size] = False
            self.inputs[name][unread] = np.nan
        self.inputs["block_table"] = table.astype(np.int32)
        self.inputs["seqlens_k"] = np.array(lengths, np.int32)
        if self.c.integer(0, 1):
            self.options["split_size"] = self.c.integer(1, 40)

    def mask(self) -> None:
        left, right = (self.c.pick([-1, -1, 0, 1, 7, 1000]) for _ in range(2))
        causal = self.c.pick([False, True])
        self.options["causal"] = causal
        self.options["window"] = (left, -1 if causal else right)

    def scores(self) -> None:
        if self.c.integer(0, 3) == 0:
            self.options["scale"] = self.c.pick([0.125, 0.5])
        if self.c.integer(0, 3) == 0:
            self.options["softcap"] = self.c.pick([0.75, 5.0])
        if self.c.integer(0, 3) == 0:
            self.options["dropout_p"] = self.c.pick([0.1, 0.5, 0.9])
            self.options["seed"] = self.c.pick([0, 7, 2**63 + 5])
            self.options["offset"] = self.c.pick([0, 3, 2**32 + 1])
        if self.c.integer(0, 3) == 0:
            shape = self.c.pick([(self.heads,), (self.batch, self.heads)])
            self.inputs["alibi_slopes"] = self.normal(*shape) / 8
        if self.c.integer(0, 3) == 0:
            self.inputs["sinks"] = self.normal(self.heads)
        if self.c.integer(0, 2) == 0 and self.batch > 0 and self.rows > 0 and self.keys > 0:
            full = (self.batch, self.heads, self.rows, self.keys)
            bias = self.normal(*(n if self.c.integer(0, 1) else 1 for n in full))
            if self.c.integer(0, 3) == 0:
                bias[self.rng.random(bias.shape) < 0.2] = -np.inf
            self.inputs["bias"] = bias


def random_case(
    choices: Choices, rng: np.random.Generator, longest: int = 40, gpu: bool = False
) -> Case:
    return _Builder(choices, rng, longest, gpu).build()


def awkward(x: Array, rng: np.random.Generator, rubbish: float) -> Array:
    """The same values with permuted, padded and reversed strides, the last one 1."""
    lead = x.ndim - 1
    order = [*rng.permutation(lead), lead]
    padded = [x.shape[axis] + int(rng.integers(0, 3)) for axis in order]
    view = np.full(padded, rubbish, x.dtype)
    view = view[tuple(slice(0, x.shape[axis]) for axis in order)].transpose(np.argsort(order))
    turn = tuple(slice(None, None, int(rng.choice([1, 1, -1]))) for _ in range(lead))
    view = view[turn]
    view[...] = x
    return view


def awkward_on_device(x: Any, rng: np.random.Generator) -> Any:
    """The same for an array of PyTorch or CuPy: permuted and padded, NaN in the gaps."""
    if not hasattr(x, "strides") and not hasattr(x, "stride"):  # JAX has no strides
        return x
    lead = x.ndim - 1
    order = [*rng.permutation(lead).tolist(), lead]
    padded = [x.shape[axis] + int(rng.integers(0, 3)) for axis in order]
    wide = x.new_empty(padded) if hasattr(x, "new_empty") else type(x)(tuple(padded), x.dtype)
    view = wide[tuple(slice(0, x.shape[axis]) for axis in order)]
    back = np.argsort(order).tolist()
    if hasattr(wide, "permute"):
        wide.fill_(np.nan)
        view = view.permute(*back)
    else:
        wide.fill(np.nan)
        view = view.transpose(back)
    view[...] = x
    return view
