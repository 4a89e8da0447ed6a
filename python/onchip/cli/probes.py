# SPDX-License-Identifier: Apache-2.0
"""Looks at the driver, the GPUs and the frameworks without importing any of them here."""

import importlib.metadata
import shutil
import subprocess
import sys
from dataclasses import dataclass

PROBE_SECONDS = 120.0  # a cold import of a large framework can take a minute

# Runs in a process of its own: a broken driver may hang or crash in cuInit.
_DRIVER_PROBE = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    raise SystemExit(3)
version, count = ctypes.c_int(), ctypes.c_int()
cuda.cuDriverGetVersion(ctypes.byref(version))
code = cuda.cuInit(0)
if code == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
print(version.value, code, count.value)
"""

# Makes arrays in the framework, in host memory and on a GPU where onchip can use one, runs them
# through onchip and compares with a float64 computation.
_TRY_PROBE = """
import sys
import numpy
import onchip
from onchip.cli import cuda
from onchip.cli.selftest import small_inputs, worst_error
name = sys.argv[1]
inputs = small_inputs()
gpu = None
places = {}  # arrays, and how a result gets back into host memory
if name == "torch":
    import torch as framework
    arrays = [framework.from_numpy(x) for x in inputs]
    places["cpu"] = arrays, numpy.asarray
    gpu = framework.cuda.is_available()
    if gpu and cuda.state().usable:
        places["gpu"] = [x.cuda() for x in arrays], lambda x: x.cpu().numpy()
elif name == "jax":
    import jax as framework
    cpu = framework.devices("cpu")[0]
    places["cpu"] = [framework.device_put(x, cpu) for x in inputs], numpy.asarray
    gpu = any(device.platform != "cpu" for device in framework.devices())
elif name == "cupy":
    import cupy as framework
    gpu = framework.cuda.is_available()
    if gpu and cuda.state().usable:
        places["gpu"] = [framework.asarray(x) for x in inputs], framework.asnumpy
elif name == "ml_dtypes":
    import ml_dtypes
    places["cpu"] = [x.astype(ml_dtypes.bfloat16) for x in inputs], numpy.asarray
else:
    places["cpu"] = inputs, numpy.asarray
for place, (arrays, back) in places.items():
    out = onchip.attention(*arrays, causal=True)
    if type(out).__module__.partition(".")[0] != type(arrays[0]).__module__.partition(".")[0]:
        raise TypeError(f"the result is a {type(out)}, the inputs are {type(arrays[0])}")
    limit = 0.05 if name == "ml_dtypes" else 1e-5
    error = worst_error(back(out), inputs)
    if not error <= limit:
        raise ValueError(f"attention on the {place} is wrong by {error:.2g}")
print(gpu)
"""


@dataclass(frozen=True)
class Driver:
    library: bool  # libcuda.so.1 can be loaded
    cuda_version: str | None  # newest CUDA that the driver serves
    devices: int
    error: str | None

    def text(self) -> str:
        if not self.library:
            return self.error or "none"
        return f"CUDA {self.cuda_version}, {self.devices} devices"


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    memory: str
    compute_capability: str
    driver_version: str


@dataclass(frozen=True)
class Framework:
    name: str
    version: str | None  # None: not installed
    tried: bool
    gpu: bool | None  # whether it sees one; None: not asked
    error: str | None

    def text(self) -> str:
        if self.version is None:
            return "not installed"
        if self.error:
            return f"{self.version}, broken"
        return f"{self.version}, works" if self.tried else self.version


def _python(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=PROBE_SECONDS,
    )


def cuda_driver() -> Driver:
    try:
        done = _python(_DRIVER_PROBE)
    except subprocess.TimeoutExpired:
        return Driver(True, None, 0, f"libcuda did not answer in {PROBE_SECONDS:.0f} s")
    if done.returncode == 3:
        return Driver(False, None, 0, None)
    if done.returncode != 0:
        return Driver(True, None, 0, f"libcuda failed: {_last_line(done.stderr)}")
    version, code, count = (int(word) for word in done.stdout.split())
    error = f"cuInit failed with code {code}" if code else None
    return Driver(True, f"{version // 1000}.{version % 1000 // 10}", count, error)


def nvidia_gpus() -> list[Gpu]:
    """What nvidia-smi lists; empty without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = "index,name,memory.total,compute_cap,driver_version"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    gpus = []
    for line in done.stdout.splitlines():
        index, name, memory, capability, driver = (word.strip() for word in line.split(","))
        gpus.append(Gpu(int(index), name, memory, capability.replace(".", ""), driver))
    return gpus


def installed_version(name: str) -> str | None:
    """The distribution's version; CuPy's wheels are named after their CUDA."""
    names = [name] if name != "cupy" else ["cupy", "cupy-cuda12x", "cupy-cuda13x"]
    for candidate in names:
        try:
            return importlib.metadata.version(candidate)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def framework(name: str, *, try_it: bool) -> Framework:
    version = installed_version(name)
    if version is None or not try_it:
        return Framework(name, version, False, None, None)
    try:
        done = _python(_TRY_PROBE, name)
    except subprocess.TimeoutExpired:
        return Framework(name, version, True, None, f"did not import in {PROBE_SECONDS:.0f} s")
    if done.returncode != 0:
        return Framework(name, version, True, None, _last_line(done.stderr))
    answer = done.stdout.split()[-1]
    return Framework(name, version, True, {"True": True, "False": False}.get(answer), None)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it crashed without a word"
