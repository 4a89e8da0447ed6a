# SPDX-License-Identifier: Apache-2.0
"""Starts the measuring process and follows it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from onchip.cli.bench import environment
from onchip.cli.bench.worker import Spec


class WorkerError(Exception):
    """The measuring process ended early; what it said is already on stderr."""


def run_worker(
    spec: Spec, isa: str, on_cell: Callable[[dict[str, Any]], None]
) -> tuple[dict[str, dict[str, str]], list[dict[str, Any]]]:
    """Returns the providers' facts and the cells' records; `on_cell` gets each as it comes."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "onchip.cli.bench.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment.variables(spec.threads, isa),
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    providers: dict[str, dict[str, str]] = {}
    records: list[dict[str, Any]] = []
    ended = False
    try:
        worker.stdin.write(spec.to_json())
        worker.stdin.close()
        for line in worker.stdout:
            message = json.loads(line)
            if message["event"] == "start":
                providers = message["providers"]
            elif message["event"] == "cell":
                records.append(message["record"])
                on_cell(message["record"])
            else:
                ended = True
    finally:
        if not ended:
            worker.kill()
        worker.stdout.close()
        code = worker.wait()
    if not ended or code != 0:
        raise WorkerError(f"the measuring process ended with code {code}")
    return providers, records
