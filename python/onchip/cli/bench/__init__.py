# SPDX-License-Identifier: Apache-2.0
"""onchip beside its peers, in one run, on the same tensors."""
