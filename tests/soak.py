# SPDX-License-Identifier: Apache-2.0
"""Random problems against the NumPy reference, for as long as one likes.

    python tests/soak.py --problems 1000 --seed 1 --kind torch-float16

Prints each failing problem with the number that repeats it alone (--first N --problems 1), and one
line at the end. The exit status is 1 where a problem failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "python"))

import library
from casefile import Case
from comparison import expect_right, worst_error
from kinds import GPU_KINDS, KINDS
from problems import RandomChoices, random_case


def describe(case: Case) -> str:
    shapes = " ".join(f"{name}{x.shape}" for name, x in case.inputs.items())
    return f"{case.op} {shapes} {case.options}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the whole run (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--longest", type=int, default=200, help="longest sequence (default: 200)")
    parser.add_argument(
        "--kind",
        choices=sorted(KINDS | GPU_KINDS),
        action="append",
        help="kinds of array (default: NumPy's)",
    )
    args = parser.parse_args()
    kinds = args.kind or [name for name in sorted(KINDS) if name.startswith("numpy-")]
    failed, worst, start = 0, 0.0, time.perf_counter()
    for number in range(args.first, args.first + args.problems):
        rng = np.random.default_rng((args.seed, number))
        name = kinds[number % len(kinds)]
        case = random_case(RandomChoices(rng), rng, args.longest, name in GPU_KINDS)
        kind = (KINDS | GPU_KINDS)[name]()
        try:
            got = library.results(case, kind)
            if kind.dtype == "float32":
                worst = max(worst, worst_error(case, got))
            expect_right(case, got, kind.dtype)
        except Exception as fault:
            failed += 1
            print(f"problem {number} {name}: {describe(case)}\n  {fault}")
    seconds = time.perf_counter() - start
    print(
        f"soak: {args.problems} problems, {failed} failed, seed {args.seed}, "
        f"kinds {', '.join(kinds)}, worst float32 error {worst:.2g}, {seconds:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
