# SPDX-License-Identifier: Apache-2.0
"""Runs a problem given as float64 arrays through the library, in any kind of array."""

from __future__ import annotations

from typing import Any

import numpy as np

import onchip
from casefile import Case
from kinds import Kind

Array = np.ndarray[Any, Any]

STATISTICS = {"alibi_slopes", "sinks", "dlse"}
INTEGERS = {"cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "seqlens_k", "block_table"}


def give(case: Case, kind: Kind, name: str, values: Array) -> Any:
    if name in INTEGERS:
        return kind.make_int(values)
    if name in STATISTICS or (name == "bias" and case.wide_bias):
        return kind.make_stats(values)
    return kind.make(values)


def results(case: Case, kind: Kind) -> dict[str, Array]:
    """out, lse and, where the case has dout, the gradients, by name, in float64."""
    q, k, v = (kind.make(x) for x in case.qkv)
    options = {**case.options, **{name: give(case, kind, name, x) for name, x in case.rest.items()}}
    forward = {
        "dense": onchip.attention,
        "varlen": onchip.attention_varlen,
        "paged": onchip.decode,
    }[case.op]
    out, lse = forward(q, k, v, **options, return_lse=True)
    got = {"out": out, "lse": lse}
    if case.has_gradients:
        dlse = case.inputs.get("dlse")
        options.pop("softmax", None)
        gradients = {"dense": onchip.attention_backward, "varlen": onchip.attention_varlen_backward}
        all_of_them = gradients[case.op](
            kind.make(case.inputs["dout"]), q, k, v, out, lse,
            dlse=None if dlse is None else kind.make_stats(dlse),
            deterministic=case.deterministic, **options,
        )  # fmt: skip
        names = ["dq", "dk", "dv"]
        names += ["dbias"] if "bias" in case.inputs else []
        names += ["dsinks"] if "sinks" in case.inputs else []
        got.update(zip(names, all_of_them, strict=True))
    return {name: kind.back(x) for name, x in got.items()}
