# SPDX-License-Identifier: Apache-2.0
"""The CUDA backend beside every peer that can be imported, on the FlashAttention papers' grid."""
