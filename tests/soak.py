# SPDX-License-Identifier: Apache-2.0
"""Random problems against the NumPy reference, for as long as one likes.

    python tests/soak.py --problems 1000 --seed 1 --kind torch-float16
    python tests/soak.py --problems 5000 --kind gpu --jobs 16

Every problem computes both passes, but for paged caches, which have no backward pass; results and
workspace hold NaN before. Prints each failing problem in a line that says how to repeat it alone,
and a summary. The exit status is 1 where a problem failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# A process computes one problem at a time; many processes share the machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "python"))

import library
from casefile import Case
from comparison import expect_right, worst_error
from kinds import GPU_KINDS, KINDS
from poison import poisoned_allocations
from problems import RandomChoices, random_case


@dataclass(frozen=True)
class Task:
    number: int
    seed: int
    longest: int
    kind: str

    def repeat(self) -> str:
        return (
            f"python tests/soak.py --seed {self.seed} --first {self.number} --problems 1 "
            f"--longest {self.longest} --kind {self.kind}"
        )


@dataclass
class Outcome:
    task: Task
    fault: str | None = None
    worst: float = 0.0  # of float32
    backward: bool = False


def describe(case: Case) -> str:
    shapes = " ".join(f"{name}{x.shape}" for name, x in case.inputs.items())
    how = "deterministic " if case.deterministic else ""
    return f"{case.op} {how}{shapes} {case.options}"


def attempt(task: Task) -> Outcome:
    rng = np.random.default_rng((task.seed, task.number))
    case = random_case(RandomChoices(rng), rng, task.longest, task.kind in GPU_KINDS)
    outcome = Outcome(task, backward=case.has_gradients)
    try:
        kind = {**KINDS, **GPU_KINDS}[task.kind]()
        with poisoned_allocations():
            got = library.results(case, kind)
        if kind.dtype == "float32":
            outcome.worst = worst_error(case, got)
        expect_right(case, got, kind.dtype)
    except BaseException as fault:  # a kind that is not installed skips, which is a fault here
        if isinstance(fault, KeyboardInterrupt):
            raise
        text = " ".join(str(fault).split())
        outcome.fault = f"{type(fault).__name__}: {text[:300]} | {describe(case)}"
    return outcome


def chosen_kinds(names: list[str] | None) -> list[str]:
    if not names:
        return [name for name in sorted(KINDS) if name.startswith("numpy-")]
    return [name for given in names for name in (sorted(GPU_KINDS) if given == "gpu" else [given])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the whole run (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--longest", type=int, default=200, help="longest sequence (default: 200)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument(
        "--kind",
        choices=["gpu", *sorted(KINDS | GPU_KINDS)],
        action="append",
        help="kinds of array, gpu: all on a GPU (default: NumPy's)",
    )
    args = parser.parse_args()
    kinds = chosen_kinds(args.kind)
    tasks = [
        Task(number, args.seed, args.longest, kinds[number % len(kinds)])
        for number in range(args.first, args.first + args.problems)
    ]
    failed, backward, worst, start = 0, 0, 0.0, time.perf_counter()
    # Started afresh: CUDA does not survive a fork.
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for outcome in pool.imap_unordered(attempt, tasks, chunksize=4):
            backward += outcome.backward
            worst = max(worst, outcome.worst)
            if outcome.fault is not None:
                failed += 1
                print(f"{outcome.task.repeat()}  # {outcome.fault}", flush=True)
    seconds = time.perf_counter() - start
    print(
        f"soak: {args.problems} problems ({backward} with backward), {failed} failed, "
        f"seed {args.seed}, kinds {', '.join(kinds)}, worst float32 error {worst:.2g}, "
        f"{seconds:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
