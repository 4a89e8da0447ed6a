# SPDX-License-Identifier: Apache-2.0
"""The CPU backend beside torch and NumPy."""
