"""The solver's chatter is kept out of standard output, and nothing else is."""

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, os
from apps.power.curtailment.quiet import without_chatter
libc = ctypes.CDLL(None)
print("before")
try:
    with without_chatter():
        libc.printf(b"HighsMipSolverData::transformNewIntegerFeasibleSolution tmpSolver.run();\\n")
        libc.printf(b"another word\\n")
        os.write(1, b"from another thread\\n")
        {fails}
except ZeroDivisionError:
    print("failed")
print("after")
"""


@pytest.mark.parametrize(("fails", "more"), [("pass", []), ("1 / 0", ["failed"])])
def test_one_line_is_dropped_and_the_rest_is_passed_on(fails, more):
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(fails=fails)], capture_output=True, text=True, check=True
    )

    lines = told.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert sorted(lines[1:-1]) == sorted(["another word", "from another thread", *more])


def test_where_standard_output_is_closed_the_solver_still_runs():
    script = (
        "import os, sys; from apps.power.curtailment.quiet import without_chatter\n"
        "os.close(1)\nwith without_chatter():\n    pass\nsys.stderr.write('ran')"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert told.stderr.startswith("ran")
