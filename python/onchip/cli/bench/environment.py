# SPDX-License-Identifier: Apache-2.0
"""What the measuring process is started with, and facts of the machine it ran on."""

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

# Instruction set -> what tells each library to keep to it. Read at import, so set before start.
ISA_VARIABLES: dict[str, dict[str, str]] = {
    "native": {},
    "avx2": {
        "ONCHIP_CPU_ISA": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
}
THREAD_VARIABLES = (
    "ONCHIP_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


def variables(threads: int, isa: str) -> dict[str, str]:
    return {name: str(threads) for name in THREAD_VARIABLES} | ISA_VARIABLES[isa]


def usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        if found:
            return found.group(1).strip()
    return platform.processor() or platform.machine()


def machine_facts() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "usable_cpus": usable_cpus(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def repository_root(start: Path) -> Path | None:
    """The checkout that `start` lies in, if it is one of this project."""
    for folder in (start, *start.parents):
        if (folder / "benchmarks").is_dir() and (folder / "python/onchip").is_dir():
            return folder
    return None


def commit(root: Path | None) -> str | None:
    """The checkout's commit, marked where it has changes; ONCHIP_COMMIT where that is set, for a
    copy of the sources without their history."""
    given = os.environ.get("ONCHIP_COMMIT")
    if given or root is None:
        return given
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
