# SPDX-License-Identifier: Apache-2.0
"""A small real input: this package's own source text, embedded character by character."""

import importlib.resources
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MODEL_DIM = 256


class TextProblem(NamedTuple):
    """Attention over a text, as float32: q, dout (1, N, H, D) and k, v (1, N, Hkv, D)."""

    q: Array
    k: Array
    v: Array
    readout: Array  # (H * D, 256): from the output to the scores of the next byte
    following: NDArray[np.int64]  # (N,): the byte after each position


def read_text(length: int) -> bytes:
    """The sources of onchip.cli in name order, from the start again where they are too short."""
    package = importlib.resources.files("onchip.cli")
    names = sorted(entry.name for entry in package.iterdir() if entry.name.endswith(".py"))
    text = b"".join((package / name).read_bytes() for name in names)
    return (text * (length // len(text) + 1))[:length]


def make_problem(length: int, heads: int, heads_kv: int, dim: int) -> TextProblem:
    """Byte and position embeddings through fixed random projections."""
    rng = np.random.default_rng(7)
    codes = np.frombuffer(read_text(length + 1), np.uint8).astype(np.int64)
    embedding = rng.standard_normal((256, MODEL_DIM), np.float32)
    rates = 1e-4 ** (np.arange(MODEL_DIM // 2) / (MODEL_DIM // 2))
    angles = np.arange(length)[:, None] * rates
    positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    hidden = embedding[codes[:length]] + positions
    hidden /= np.sqrt(np.mean(hidden**2, axis=1, keepdims=True))

    def project(count: int) -> Array:
        weights = rng.standard_normal((MODEL_DIM, count * dim), np.float32) / MODEL_DIM**0.5
        projected: Array = (hidden @ weights).reshape(1, length, count, dim)
        return projected

    q, k, v = project(heads), project(heads_kv), project(heads_kv)
    readout = rng.standard_normal((heads * dim, 256), np.float32) / np.float32((heads * dim) ** 0.5)
    return TextProblem(q, k, v, readout, codes[1:])


def loss_gradient(problem: TextProblem, out: Array) -> tuple[float, Array]:
    """Mean cross entropy of the next byte in nats, and the gradient of the sum by `out`."""
    length = out.shape[1]
    scores = out.reshape(length, -1).astype(np.float32) @ problem.readout
    scores -= scores.max(axis=1, keepdims=True)
    p = np.exp(scores)
    p /= p.sum(axis=1, keepdims=True)
    rows = np.arange(length)
    loss = float(-np.mean(np.log(p[rows, problem.following])))
    p[rows, problem.following] -= 1
    return loss, (p @ problem.readout.T).reshape(out.shape)
