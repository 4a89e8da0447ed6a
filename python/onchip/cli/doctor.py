# SPDX-License-Identifier: Apache-2.0
"""`onchip doctor`: what this installation can use, and what is wrong with it."""

import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

import onchip
from onchip.cli import cuda, probes, selftest
from onchip.cli._console import EXIT_FAILED, console, format_bytes
from onchip.cli.bench.environment import cpu_model, usable_cpus

FRAMEWORKS = ("numpy", "ml_dtypes", "torch", "jax", "cupy")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong ("problem": something fails) or worth knowing ("note")."""

    level: str
    subject: str
    text: str


def library_facts() -> dict[str, Any]:
    device = onchip.device_info("cpu")
    return {
        "version": onchip.__version__,
        "path": os.path.dirname(onchip.__file__),
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "backends": ["cpu", "cuda"] if cuda.state().built else ["cpu"],
        "cpu": cpu_model(),
        "instruction_set": onchip.cpu_isa(),
        "threads": onchip.num_threads(),
        "usable_cpus": usable_cpus(),
        "on_chip_bytes": device.on_chip_bytes,
    }


def library_findings(facts: dict[str, Any]) -> list[Finding]:
    findings = []
    if facts["threads"] > facts["usable_cpus"]:
        findings.append(
            Finding(
                "note",
                "threads",
                f"{facts['threads']} threads on {facts['usable_cpus']} usable CPUs: "
                "lower ONCHIP_NUM_THREADS",
            )
        )
    capped = os.environ.get("ONCHIP_CPU_ISA")
    if capped:
        findings.append(
            Finding("note", "instruction set", f"ONCHIP_CPU_ISA={capped} caps the instruction set")
        )
    error = selftest.run()
    if error:
        findings.append(Finding("problem", "cpu backend", error))
    return findings


def cuda_facts() -> dict[str, Any]:
    """The CUDA backend: whether it is built, why it cannot be used, and the devices it sees."""
    state = cuda.state()
    return asdict(state) | {"devices": cuda.device_names() if state.usable else []}


def gpu_findings(
    driver: probes.Driver, gpus: list[probes.Gpu], backend: dict[str, Any]
) -> list[Finding]:
    findings = []
    if driver.error:
        # A machine may have the driver's library and no GPU: that is nobody's fault.
        findings.append(Finding("problem" if gpus else "note", "driver", driver.error))
    if gpus and not driver.library:
        findings.append(
            Finding("problem", "driver", "nvidia-smi lists a GPU but libcuda.so.1 is not found")
        )
    if driver.devices and not gpus:
        findings.append(
            Finding("note", "nvidia-smi", "the driver sees a GPU but nvidia-smi lists none")
        )
    if gpus and not backend["built"]:
        findings.append(
            Finding("note", "gpu", "this build has no CUDA backend: the GPU will not be used")
        )
    elif gpus and backend["error"]:
        findings.append(Finding("problem", "cuda backend", backend["error"]))
    return findings


def framework_findings(frameworks: list[probes.Framework], gpus: list[probes.Gpu]) -> list[Finding]:
    findings = []
    versions = {framework.name: framework.version for framework in frameworks}
    for framework in frameworks:
        if framework.error:
            findings.append(Finding("problem", framework.name, framework.error))
        elif gpus and framework.gpu is False:
            findings.append(
                Finding(
                    "note",
                    framework.name,
                    f"{framework.version} does not see the GPU: a CPU-only build, or one for "
                    "another driver",
                )
            )
    if versions.get("numpy") and not versions.get("ml_dtypes"):
        findings.append(
            Finding("note", "ml_dtypes", "not installed: NumPy has no bfloat16 without it")
        )
    return findings


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    frameworks: Annotated[
        bool, typer.Option(help="Import each framework in a process of its own and try it.")
    ] = True,
) -> None:
    """Shows backends, instruction set, GPU, driver and frameworks, and what is wrong with them.

    The exit code is 1 where something is broken; notes do not count.
    """
    facts = library_facts()
    backend = cuda_facts()
    driver, gpus = probes.cuda_driver(), probes.nvidia_gpus()
    found = [probes.framework(name, try_it=frameworks) for name in FRAMEWORKS]
    findings = [
        *library_findings(facts),
        *gpu_findings(driver, gpus, backend),
        *framework_findings(found, gpus),
    ]
    healthy = not any(finding.level == "problem" for finding in findings)
    report = {
        "library": facts,
        "cuda": backend,
        "driver": asdict(driver),
        "gpus": [asdict(gpu) for gpu in gpus],
        "frameworks": [asdict(framework) for framework in found],
        "findings": [asdict(finding) for finding in findings],
        "healthy": healthy,
    }
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print(facts, backend, driver, gpus, found, findings)
    if not healthy:
        raise typer.Exit(EXIT_FAILED)


def _backend_text(backend: dict[str, Any]) -> str:
    if not backend["built"]:
        return "not in this build"
    return ", ".join(backend["devices"]) or str(backend["error"])


def _print(
    facts: dict[str, Any],
    backend: dict[str, Any],
    driver: probes.Driver,
    gpus: list[probes.Gpu],
    frameworks: list[probes.Framework],
    findings: list[Finding],
) -> None:
    table = Table(show_header=False)
    shown = facts | {
        "backends": ", ".join(facts["backends"]),
        "threads": f"{facts['threads']} on {facts['usable_cpus']} usable CPUs",
        "on_chip_bytes": f"{format_bytes(facts['on_chip_bytes'])} (L2 of a core)",
    }
    for name, value in shown.items():
        table.add_row(name.replace("_", " "), str(value))
    table.add_section()
    table.add_row("cuda backend", _backend_text(backend))
    table.add_row("driver", driver.text())
    for gpu in gpus:
        table.add_row(f"gpu {gpu.index}", f"{gpu.name}, {gpu.memory}, sm_{gpu.compute_capability}")
    if not gpus:
        table.add_row("gpu", "none")
    table.add_section()
    for framework in frameworks:
        table.add_row(framework.name, framework.text())
    out = console()
    out.print(table)
    for finding in findings:
        colour = "bold red" if finding.level == "problem" else "yellow"
        out.print(f"[{colour}]{finding.level}:[/] {finding.subject}: {finding.text}")
    if not findings:
        out.print("[bold green]nothing is wrong[/]")
