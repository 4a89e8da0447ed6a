# SPDX-License-Identifier: Apache-2.0
"""Attention of the installed wheel against the formula, forward and backward."""

import platform
import sys

import numpy as np

import onchip

rng = np.random.default_rng(0)
q, k, v, dout = (rng.standard_normal((2, 33, 4, 16)) for _ in range(4))

out, lse = onchip.attention(q, k, v, causal=True, return_lse=True)
dq, dk, dv = onchip.attention_backward(dout, q, k, v, out, lse, causal=True)

s = np.einsum("bihd,bjhd->bhij", q, k) / 4.0
s = np.where(np.tri(33, dtype=bool), s, -np.inf)
expected_lse = np.log(np.exp(s).sum(-1))
p = np.exp(s - expected_lse[..., None])
dp = np.einsum("bihd,bjhd->bhij", dout, v)
ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / 4.0

np.testing.assert_allclose(lse, expected_lse, rtol=1e-9)
np.testing.assert_allclose(out, np.einsum("bhij,bjhd->bihd", p, v), rtol=1e-9, atol=1e-12)
np.testing.assert_allclose(dq, np.einsum("bhij,bjhd->bihd", ds, k), rtol=1e-9, atol=1e-12)
np.testing.assert_allclose(dk, np.einsum("bhij,bihd->bjhd", ds, q), rtol=1e-9, atol=1e-12)
np.testing.assert_allclose(dv, np.einsum("bhij,bihd->bjhd", p, dout), rtol=1e-9, atol=1e-12)

# Without a driver a CUDA build has no device to name, but the backend is there.
try:
    cuda = onchip.device_info("cuda").name
except NotImplementedError:
    cuda = ""
except RuntimeError as error:
    cuda = str(error)
assert bool(cuda) == (sys.argv[1] == "cuda"), cuda
print(cuda or "no CUDA backend")
print(f"onchip {onchip.__version__} on Python {platform.python_version()}: right")
