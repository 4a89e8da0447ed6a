# SPDX-License-Identifier: Apache-2.0
"""Whether the CUDA backend is there and can be used."""

from dataclasses import dataclass

import onchip


@dataclass(frozen=True)
class State:
    built: bool
    error: str | None  # why it cannot be used

    @property
    def usable(self) -> bool:
        return self.error is None


def state() -> State:
    try:
        onchip.device_info("cuda")
    except NotImplementedError as error:
        return State(False, str(error))
    except RuntimeError as error:
        return State(True, str(error))
    return State(True, None)


def device_names() -> list[str]:
    """The devices that the backend sees, in their order."""
    names: list[str] = []
    try:
        while True:
            info = onchip.device_info(f"cuda:{len(names)}")
            names.append(f"{info.name} (sm_{info.compute_capability}, kernels sm{info.family})")
    except RuntimeError:  # no device of that number
        return names
