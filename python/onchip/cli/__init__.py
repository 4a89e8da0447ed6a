# SPDX-License-Identifier: Apache-2.0
"""The `onchip` command. Needs the extra `cli`: pip install 'onchip[cli]'."""

__all__ = ["main"]


def main() -> None:
    """Runs the command line, or says what is missing where the extra was not installed."""
    try:
        from onchip.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "numpy"):
            raise
        raise SystemExit(
            f"onchip: the command line needs {error.name}: pip install 'onchip[cli]'"
        ) from None
    app()
