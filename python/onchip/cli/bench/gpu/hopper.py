# SPDX-License-Identifier: Apache-2.0
"""The score of the forward pass on Hopper, and the bars on it.

FlashAttention-3 and -4 lead there but are seldom at hand; cuDNN is wherever PyTorch is. So all
three were measured once, beside each other, and a run beside cuDNN is held to the fastest of them:
a score of 1 is level with that, as far as its lead over cuDNN is the same in this run.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from onchip.cli.bench.bars import Bar, geomean, speedup
from onchip.cli.bench.cells import place_of
from onchip.cli.bench.gpu.grid import DIMS, SEQLENS, TOKENS, WIDTH

KERNELS = "sm90_"  # what the names of the kernels for Hopper begin with
CUDNN = "torch-cudnn"
SAFE = "onchip-safe"  # the provider that asks for softmax="safe"


class Place(NamedTuple):
    """A cell among those of one pass and dtype."""

    dim: int
    causal: bool
    seqlen: int


# The fastest of cuDNN, FlashAttention-3 and FlashAttention-4 over cuDNN, in each of SEQLENS: this
# grid's forward cells in bfloat16. Measured once, turn about, on an H200 with driver 580.159: torch
# 2.11.0+cu130, cuDNN 9.19, FlashAttention-3 of August 2026 (nvcc 13.0), FlashAttention-4 4.0.0b36;
# from means of two runs.
_LEADS = {
    (64, False): (1.0, 1.0, 1.08, 1.124, 1.204, 1.211),
    (64, True): (1.0, 1.0, 1.081, 1.129, 1.209, 1.227),
    (128, False): (1.0, 1.045, 1.05, 1.098, 1.108, 1.12),
    (128, True): (1.0, 1.185, 1.235, 1.281, 1.307, 1.308),
    (256, False): (1.026, 1.11, 1.116, 1.11, 1.149, 1.164),
    (256, True): (1.0, 1.132, 1.224, 1.302, 1.322, 1.337),
}
BEST_OVER_CUDNN = {
    Place(dim, causal, seqlen): lead
    for (dim, causal), leads in _LEADS.items()
    for seqlen, lead in zip(SEQLENS, leads, strict=True)
}


@dataclass(frozen=True)
class Aim:
    """The least geometric mean of the scores in some places."""

    what: str
    least: float
    dims: tuple[int, ...] = DIMS
    longest: int = max(SEQLENS)

    @property
    def places(self) -> list[Place]:
        return [x for x in BEST_OVER_CUDNN if x.dim in self.dims and x.seqlen <= self.longest]


AIMS = (
    Aim("bfloat16", 1.03),
    Aim("bfloat16 d=64", 1.05, dims=(64,)),
    Aim("bfloat16 d=128", 1.03, dims=(128,)),
    Aim("bfloat16 d=256", 0.97, dims=(256,)),
    Aim("bfloat16 s <= 1024", 1.05, longest=1024),
)
MIN_SCORE = 0.92
SAFE_AIM = Aim('bfloat16 softmax="safe"', 0.97)
FLOAT16_AIM = Aim("float16", 1.0)


def kernels_ran(document: dict[str, Any]) -> bool:
    """Whether a run's plans have kernels for Hopper."""
    kernels = (kernel for cell in document["cells"] for kernel in cell["plan"]["kernels"])
    return any(kernel.startswith(KERNELS) for kernel in kernels)


def score_of(cell: dict[str, Any], provider: str = "onchip") -> float | None:
    """None of a cell outside the table, and where the provider or cuDNN has no right result."""
    lead = BEST_OVER_CUDNN.get(_place(cell))
    shape = (cell["heads"] * cell["dim"], cell["batch"] * cell["seqlen"])
    if lead is None or cell["direction"] != "forward" or shape != (WIDTH, TOKENS):
        return None
    ratio = speedup(cell, CUDNN, provider)
    right = all(cell["results"].get(name, {}).get("right") for name in (provider, CUDNN))
    return ratio / lead if ratio is not None and right else None


def scores(document: dict[str, Any], dtype: str, provider: str = "onchip") -> dict[Place, float]:
    """Of each place that has one."""
    cells = [cell for cell in document["cells"] if cell["dtype"] == dtype]
    return {_place(x): score for x in cells if (score := score_of(x, provider)) is not None}


def evaluate(document: dict[str, Any]) -> list[Bar]:
    """Every bar where kernels for Hopper ran; one with a cell that has no score fails."""
    if not kernels_ran(document):
        return []
    ours = scores(document, "bfloat16")
    judged = [
        *(_geomean_bar(aim, ours) for aim in AIMS),
        _worst_bar(ours),
        _geomean_bar(SAFE_AIM, scores(document, "bfloat16", SAFE)),
    ]
    ran = {(cell["direction"], cell["dtype"]) for cell in document["cells"]}
    if ("forward", "float16") in ran:
        judged.append(_geomean_bar(FLOAT16_AIM, scores(document, "float16")))
    return judged


def _place(cell: dict[str, Any]) -> Place:
    return Place(cell["dim"], cell["causal"], cell["seqlen"])


def _geomean_bar(aim: Aim, found: dict[Place, float]) -> Bar:
    places = aim.places
    values = [found[place] for place in places if place in found]
    mean = geomean(values)
    complete = len(values) == len(places)
    return Bar(
        f"Hopper score, forward {aim.what}, geometric mean",
        f">= {aim.least:g}, {len(places)} cells",
        f"{mean:.3f}, {len(values)} cells" if mean is not None else "not measured",
        mean is not None and mean >= aim.least and complete,
    )


def _worst_bar(found: dict[Place, float]) -> Bar:
    worst = min(found, key=lambda place: found[place], default=None)
    return Bar(
        "Hopper score, forward bfloat16, worst cell",
        f">= {MIN_SCORE:g}, {len(BEST_OVER_CUDNN)} cells",
        f"{found[worst]:.3f} ({place_of(worst._asdict())}), {len(found)} cells"
        if worst
        else "not measured",
        worst is not None and found[worst] >= MIN_SCORE and len(found) == len(BEST_OVER_CUDNN),
    )
