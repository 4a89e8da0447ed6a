# SPDX-License-Identifier: Apache-2.0
"""What every command prints with."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console

EXIT_FAILED = 1  # the command ran and its check failed
EXIT_USAGE = 2  # an argument is bad, or something the command needs is missing


def console() -> Console:
    """Wide enough for every table where the output is not a terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=max(out.width, 110))


def fail(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """Ends the command with one line on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {message}")
    raise typer.Exit(code)


@contextmanager
def library_errors() -> Iterator[None]:
    """Turns the library's exceptions into one line and an exit code."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"this needs {error.name}: pip install {error.name}")
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        fail(str(error))


def format_bytes(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """0.0123 -> "12.3 ms"."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def verdict(passed: bool) -> str:
    return "[bold green]pass[/]" if passed else "[bold red]FAIL[/]"
