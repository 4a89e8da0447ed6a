# SPDX-License-Identifier: Apache-2.0
"""Starts the measuring process and follows it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from onchip.cli.bench.worker import Spec


class WorkerError(Exception):
    """The measuring process ended early; what it said is already on stderr."""


def run_worker(
    spec: Spec, variables: dict[str, str], on_cell: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Returns the measured fields of the document; `on_cell` gets each cell's record as it comes.

    The process gets `variables` on top of this one's environment.
    """
    worker = subprocess.Popen(
        [sys.executable, "-m", "onchip.cli.bench.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    document: dict[str, Any] = {"providers": {}, "cells": []}
    ended = False
    try:
        worker.stdin.write(spec.to_json())
        worker.stdin.close()
        for line in worker.stdout:
            message = json.loads(line)
            if message["event"] == "cell":
                document["cells"].append(message["fields"])
                on_cell(message["fields"])
            else:
                document.update(message["fields"])
            ended = message["event"] == "end"
    finally:
        if not ended:
            worker.kill()
        worker.stdout.close()
        code = worker.wait()
    if not ended or code != 0:
        raise WorkerError(f"the measuring process ended with code {code}")
    return document
