# SPDX-License-Identifier: Apache-2.0
"""`onchip plan`: how any shape would run on any device, and what it would cost."""

from typing import Annotated

import typer

import onchip
from onchip.cli._console import console, fail, library_errors

DTYPES = ("float64", "float32", "float16", "bfloat16")


def _window(text: str) -> tuple[int, int]:
    """ "255,0" -> (255, 0); one number is the keys to the left."""
    words = text.split(",")
    try:
        left, right = (int(words[0]), int(words[1]) if len(words) == 2 else -1)
    except ValueError:
        left, right, words = 0, 0, []
    if len(words) not in (1, 2):
        fail(f"--window: {text} is not LEFT or LEFT,RIGHT in keys, -1 for all")
    return left, right


def plan(
    seqlen: Annotated[int, typer.Option("--seqlen", "-s", help="Queries and keys.")] = 4096,
    seqlen_q: Annotated[int | None, typer.Option(help="Queries, where not --seqlen.")] = None,
    seqlen_k: Annotated[int | None, typer.Option(help="Keys, where not --seqlen.")] = None,
    batch: Annotated[int, typer.Option("--batch", "-b")] = 1,
    heads: Annotated[int, typer.Option(help="Query heads.")] = 8,
    heads_kv: Annotated[int | None, typer.Option(help="Default: --heads.")] = None,
    dim: Annotated[int, typer.Option("--dim", "-d", help="Of q and k.")] = 128,
    dim_v: Annotated[int | None, typer.Option(help="Of v. Default: --dim.")] = None,
    dtype: Annotated[str, typer.Option(help=", ".join(DTYPES))] = "bfloat16",
    causal: Annotated[bool, typer.Option("--causal", help="Bottom-right aligned.")] = False,
    window: Annotated[
        str, typer.Option(help="LEFT,RIGHT keys around the diagonal, -1 for all.")
    ] = "-1,-1",
    softcap: Annotated[float, typer.Option(help="0 for none.")] = 0.0,
    softmax: Annotated[str, typer.Option(help="auto, or safe: as onchip.attention's.")] = "auto",
    backward: Annotated[bool, typer.Option("--backward", help="The backward pass.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda:0, or a GPU you need not have.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Shows tiles, on-chip memory, traffic and predicted time of one attention call.

    Devices: cpu and cuda:<index> (this machine), A100, L40S, RTX 4090, H100, H200, B200.
    """
    with library_errors():
        queries = seqlen if seqlen_q is None else seqlen_q
        keys = seqlen if seqlen_k is None else seqlen_k
        shared = heads if heads_kv is None else heads_kv
        made = onchip.plan(
            (batch, queries, heads, dim),
            (batch, keys, shared, dim),
            (batch, keys, shared, dim if dim_v is None else dim_v),
            dtype=dtype,
            causal=causal,
            window=_window(window),
            softcap=softcap,
            softmax=softmax,
            backward=backward,
            device=device,
        )
    if as_json:
        print(made.json())
        return
    console().print(made.explain(), markup=False, soft_wrap=True)
