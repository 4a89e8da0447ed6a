# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from onchip import _core
from onchip._scalars import as_int


def set_num_threads(count: int) -> None:
    """Sets the threads that calls on the CPU use from now on, the caller's included.

    Args:
        count: number of threads; 0: the default again, ONCHIP_NUM_THREADS or else the CPUs that
            this process may run on.

    Raises:
        ValueError: negative. TypeError: no int.
    """
    _core.set_num_threads(as_int("count", count, range(2**31)))
