# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner, Result

import onchip
from gpu_bench import NO_CONTEXT, HostMeter, noisy
from onchip.cli import cuda, demo, doctor, memory, probes, selftest, text_input, unfused
from onchip.cli.app import app
from onchip.cli.bench.cells import DTYPES
from onchip.cli.bench.cpu import bars
from onchip.cli.bench.gpu.providers.unfused import unfused_attention
from onchip.cli.places import HostPlace, TorchPlace
from oracle import backward, forward


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


# ------------------------------------------------------------- the program


def test_version_and_module_entry() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onchip", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == onchip.__version__


def test_says_what_is_missing_without_the_extra() -> None:
    code = "import sys; sys.modules['typer'] = None; from onchip.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs typer: pip install 'onchip[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_command_is_a_usage_error() -> None:
    assert run("attend").exit_code == 2


# --------------------------------------------------- the textbook computation


@pytest.mark.parametrize("causal", [False, True])
def test_unfused_agrees_with_the_reference(causal: bool) -> None:
    rng = np.random.default_rng(3)
    q, dout = rng.standard_normal((2, 2, 9, 4, 5))
    k, v = rng.standard_normal((2, 2, 13, 2, 5))
    saved = unfused.forward(q, k, v, causal=causal)
    out, lse = forward(q, k, v, causal=causal)
    np.testing.assert_allclose(saved.out, out, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(saved.lse, lse, rtol=1e-12)
    expected = backward(dout, q, k, v, causal=causal)
    gradients = unfused.backward(dout, q, k, v, saved)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_allclose(
            getattr(gradients, name), getattr(expected, name), rtol=1e-11, atol=1e-12
        )


# -------------------------------------------------------------------- demo


@pytest.mark.parametrize("dtype", DTYPES)
def test_demo_passes_on_a_small_text(dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    done = run(
        "demo", "--device", "cpu", "--seqlen", 200, "--heads", 2, "--heads-kv", 1, "--dim", 16,
        "--dtype", dtype, "--no-long", "--repeats", 1,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    for name in ("out", "lse", "dq", "dk", "dv", "faster", "less"):
        assert name in done.output
    assert "FAIL" not in done.output


def test_demo_says_what_bfloat16_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    done = run("demo", "--device", "cpu", "--dtype", "bfloat16", "--no-long")
    assert done.exit_code == 2
    assert "pip install ml_dtypes" in done.stderr


def test_demo_fails_where_a_gradient_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = onchip.attention_backward

    def wrong(*arguments: Any, **options: Any) -> Any:
        dq, dk, dv = right(*arguments, **options)
        dk[0, 3, 0, 1] += 0.01
        return dq, dk, dv

    monkeypatch.setattr(onchip, "attention_backward", wrong)
    done = run(
        "demo",
        "--device",
        "cpu",
        "--seqlen",
        64,
        "--heads",
        1,
        "--heads-kv",
        1,
        "--dim",
        8,
        "--no-long",
    )
    assert done.exit_code == 1
    assert "FAIL" in done.output


def test_demo_fails_on_nan() -> None:
    exact = demo.Results(*(np.zeros(3) for _ in range(5)))
    broken = exact._replace(out=np.array([0.0, np.nan, 0.0]))
    rows = demo.error_rows(exact, broken, exact)
    assert [name for name, error, _, bound in rows if not error <= bound] == ["out"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--dtype", "int8"], "--dtype: int8"),
        (["--heads", 3, "--heads-kv", 2], "--heads-kv: 2"),
        (["--device", "tpu"], "--device: tpu"),
    ],
)
def test_demo_refuses(arguments: list[Any], named: str) -> None:
    done = run("demo", *arguments)
    assert done.exit_code == 2
    assert named in done.stderr


@pytest.mark.parametrize(("said", "raises"), [(NO_CONTEXT, False), ("something else", True)])
def test_demo_keeps_to_itself_that_autograd_starts_a_thread(
    monkeypatch: pytest.MonkeyPatch, said: str, raises: bool
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("onchip.cli.bench.gpu.meter.CudaMeter", HostMeter)
    monkeypatch.setattr(
        "onchip.cli.bench.gpu.providers.unfused.unfused_attention", noisy(unfused_attention, said)
    )
    monkeypatch.setattr(TorchPlace, "put", lambda self, x: torch.from_numpy(x))
    x = np.ones((1, 8, 1, 4), np.float32)
    with pytest.raises(UserWarning) if raises else contextlib.nullcontext():
        assert TorchPlace().unfused(x, x, x, x) is not None


def test_demo_chooses_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(cuda, "state", lambda: cuda.State(True, None))
    monkeypatch.setattr(demo, "TorchPlace", lambda: "the GPU")
    assert demo.choose_place("auto") == demo.choose_place("cuda") == "the GPU"
    assert isinstance(demo.choose_place("cpu"), HostPlace)
    monkeypatch.setattr(cuda, "state", lambda: cuda.State(True, "no driver"))
    assert isinstance(demo.choose_place("auto"), HostPlace)
    done = run("demo", "--device", "cuda")
    assert done.exit_code == 2
    assert "--device: no driver" in done.stderr


def test_long_sequence_stays_under_the_memory_bar() -> None:
    heavy = demo.weigh_long_sequence(HostPlace(), full=False)
    assert heavy.planned.score_bytes == 4 * 32768**2
    assert heavy.planned.output_bytes == 4 * 32768 * 64 * 4 + 32768 * 4
    assert 0 < heavy.planned.share < bars.MAX_MEMORY_SHARE
    assert heavy.grown_bytes is None or heavy.grown_bytes < 0.02 * heavy.planned.score_bytes


def test_measured_growth_sees_an_allocation() -> None:
    size = 64 << 20
    _, grown = memory.peak_growth(lambda: np.ones(size, np.uint8).sum())
    assert grown is None or 0.9 * size < grown < 2 * size


def test_text_is_the_same_every_time_and_long_enough() -> None:
    assert text_input.read_text(300_000) == text_input.read_text(300_000)
    assert len(text_input.read_text(300_000)) == 300_000
    first, second = (text_input.make_problem(50, 2, 1, 8) for _ in range(2))
    np.testing.assert_array_equal(first.q, second.q)
    assert first.following[:49].tolist() == list(text_input.read_text(50)[1:])


def test_loss_gradient_is_that_of_the_loss() -> None:
    problem = text_input.make_problem(6, 1, 1, 4)
    out = np.random.default_rng(0).standard_normal((1, 6, 1, 4)).astype(np.float32)
    _, gradient = text_input.loss_gradient(problem, out)
    step = 1e-2
    moved = out.copy()
    moved[0, 2, 0, 1] += step
    higher, _ = text_input.loss_gradient(problem, moved)
    moved[0, 2, 0, 1] -= 2 * step
    lower, _ = text_input.loss_gradient(problem, moved)
    slope = 6 * (higher - lower) / (2 * step)  # the gradient is of the sum, the loss the mean
    assert slope == pytest.approx(float(gradient[0, 2, 0, 1]), rel=0.02)


# -------------------------------------------------------------------- plan


@pytest.mark.parametrize("device", onchip.devices())
@pytest.mark.parametrize("backward", [False, True])
def test_plan_as_json(device: str, backward: bool) -> None:
    done = run(
        "plan", "--device", device, "-s", 1000, "--heads", 8, "--heads-kv", 2, "-d", 64, "--causal",
        "--json", *(["--backward"] if backward else []),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    made = onchip.plan(
        (1, 1000, 8, 64), (1, 1000, 2, 64), causal=True, device=device, backward=backward
    )
    assert json.loads(done.stdout) == made.as_dict()


def test_plan_passes_every_option_on() -> None:
    done = run(
        "plan", "-b", 3, "--seqlen-q", 100, "--seqlen-k", 333, "--heads", 4, "-d", 48,
        "--dim-v", 40, "--dtype", "float32", "--window", "31,7", "--softcap", "20", "--json",
    )  # fmt: skip
    made = onchip.plan(
        (3, 100, 4, 48), (3, 333, 4, 48), (3, 333, 4, 40),
        dtype="float32", window=(31, 7), softcap=20.0,
    )  # fmt: skip
    assert json.loads(done.stdout) == made.as_dict()
    done = run("plan", "--device", "h200", "--softmax", "safe")
    assert "(safe)" in done.stdout


def test_plan_in_words_has_a_picture() -> None:
    done = run("plan", "--device", "h100", "--causal", "-s", 2048)
    assert done.exit_code == 0
    assert "H100" in done.output
    assert "###/" in done.output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--heads", 6, "--heads-kv", 4], "heads_kv 4"),
        (["--device", "abacus"], "abacus"),
        (["--dtype", "int8"], "int8"),
        (["--softmax", "fast"], "softmax: 'fast'"),
        (["--window", "wide"], "--window: wide"),
        (["--window", "1,2,3"], "--window: 1,2,3"),
        (["-d", 0], "0"),
    ],
)
def test_plan_refuses(arguments: list[Any], named: str) -> None:
    done = run("plan", *arguments)
    assert done.exit_code == 2
    assert named in done.stderr


# ------------------------------------------------------------------ doctor


def test_doctor_as_json() -> None:
    done = run("doctor", "--json", "--no-frameworks")
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert report["healthy"] is True
    assert report["library"]["version"] == onchip.__version__
    assert report["library"]["instruction_set"] == onchip.cpu_isa()
    assert report["library"]["threads"] == onchip.num_threads()
    assert report["library"]["backends"] == ["cpu", *(["cuda"] if cuda.state().built else [])]
    assert report["cuda"]["built"] == cuda.state().built
    versions = {framework["name"]: framework["version"] for framework in report["frameworks"]}
    assert versions["numpy"] == np.__version__
    assert set(versions) == set(doctor.FRAMEWORKS)


@pytest.mark.parametrize(
    ("state", "backends", "text"),
    [
        (cuda.State(False, "not built"), ["cpu"], "not in this build"),
        (cuda.State(True, "no driver"), ["cpu", "cuda"], "no driver"),
        (cuda.State(True, None), ["cpu", "cuda"], "Card (sm_90, kernels sm80)"),
    ],
)
def test_doctor_lists_the_backends_that_are_built(
    monkeypatch: pytest.MonkeyPatch, state: cuda.State, backends: list[str], text: str
) -> None:
    monkeypatch.setattr(cuda, "state", lambda: state)
    monkeypatch.setattr(cuda, "device_names", lambda: ["Card (sm_90, kernels sm80)"])
    assert json.loads(run("doctor", "--json", "--no-frameworks").stdout)["library"]["backends"] == (
        backends
    )
    assert text in run("doctor", "--no-frameworks").output


def test_state_of_the_cuda_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(error: Exception) -> Any:
        def device_info(name: str) -> Any:
            raise error

        return device_info

    monkeypatch.setattr(onchip, "device_info", refuses(NotImplementedError("no backend")))
    assert cuda.state() == cuda.State(False, "no backend")
    monkeypatch.setattr(onchip, "device_info", refuses(RuntimeError("no driver")))
    assert cuda.state() == cuda.State(True, "no driver")
    assert cuda.device_names() == []

    def one_device(name: str) -> Any:
        if name != "cuda:0":
            raise RuntimeError("no such device")
        return SimpleNamespace(name="Card", compute_capability=90, family=80)

    monkeypatch.setattr(onchip, "device_info", one_device)
    assert cuda.device_names() == ["Card (sm_90, kernels sm80)"]


def test_doctor_tries_numpy() -> None:
    found = probes.framework("numpy", try_it=True)
    assert found.error is None
    assert found.text() == f"{np.__version__}, works"


def test_doctor_reports_a_framework_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, *, try_it: bool) -> probes.Framework:
        error = "ImportError: libfoo.so" if name == "torch" else None
        return probes.Framework(name, "1.0", try_it, None, error)

    monkeypatch.setattr(probes, "framework", broken)
    done = run("doctor")
    assert done.exit_code == 1
    assert "problem: torch: ImportError: libfoo.so" in done.output


def test_doctor_reports_a_wrong_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onchip, "attention_backward", lambda dout, q, k, v, *_, **__: (q, k, v))
    assert "wrong by" in str(selftest.run())
    done = run("doctor", "--json", "--no-frameworks")
    assert done.exit_code == 1
    assert {"cpu backend"} == {
        finding["subject"]
        for finding in json.loads(done.stdout)["findings"]
        if finding["level"] == "problem"
    }


def test_doctor_on_gpus() -> None:
    gpu = probes.Gpu(0, "H100", "81559 MiB", "90", "580.1")
    works = probes.Driver(True, "13.0", 1, None)
    hung = probes.Driver(True, "13.0", 0, "cuInit failed with code 999")
    none = probes.Driver(False, None, 0, None)
    usable = {"built": True, "error": None}
    absent = {"built": False, "error": "no CUDA backend"}
    broken = {"built": True, "error": "no device can be used"}

    def levels(driver: probes.Driver, gpus: list[probes.Gpu], backend: dict[str, Any]) -> list[str]:
        return [finding.level for finding in doctor.gpu_findings(driver, gpus, backend)]

    assert levels(works, [gpu], usable) == []
    assert levels(works, [gpu], absent) == ["note"]
    assert levels(works, [gpu], broken) == ["problem"]
    assert levels(hung, [gpu], usable) == ["problem"]
    assert levels(none, [gpu], usable) == ["problem"]
    assert levels(none, [], absent) == []
    assert levels(none, [], broken) == []
    blind = probes.Framework("torch", "2.13", True, False, None)
    numpy = probes.Framework("numpy", "2.0", True, None, None)
    subjects = [finding.subject for finding in doctor.framework_findings([numpy, blind], [gpu])]
    assert subjects == ["torch", "ml_dtypes"]
    assert [f.subject for f in doctor.framework_findings([blind], [])] == []


# ------------------------------------------------------------------- a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_demo_on_a_gpu(dtype: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    if not cuda.state().usable:
        pytest.skip(str(cuda.state().error))
    done = run("demo", "--device", "cuda", "--seqlen", 512, "--dtype", dtype)
    assert done.exit_code == 0, done.output
    assert onchip.device_info("cuda").name in done.output
    assert "(torch on the GPU)" in " ".join(done.output.split())
