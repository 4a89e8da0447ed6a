# SPDX-License-Identifier: Apache-2.0
"""The commands by name."""

from typing import Annotated

import typer

import onchip
from onchip.cli.bench.command import bench
from onchip.cli.demo import demo
from onchip.cli.doctor import doctor
from onchip.cli.plan import plan
from onchip.cli.tune import tune

app = typer.Typer(
    name="onchip",
    help="Exact attention that never writes the score matrix to memory.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(onchip.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    return


for command in (demo, plan, doctor, bench):
    app.command()(command)
app.command(hidden=True)(tune)
