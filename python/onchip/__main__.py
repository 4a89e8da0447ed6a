# SPDX-License-Identifier: Apache-2.0
"""`python -m onchip` is the `onchip` command."""

from onchip.cli import main

main()
