"""`make test`: all tests, on two processes: one has those with Spark, so that one runs at a time, the other the rest.

Options are pytest's, for both. What the second one says is shown when it has ended, after the first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

NO_TESTS = 5  # pytest's exit code where a selection leaves nothing
HALVES = {"with Spark": "spark", "without Spark": "not spark"}


def main(arguments: list[str]) -> int:
    """Run both halves; 0 if all tests passed, 5 if there were none."""
    with tempfile.TemporaryFile() as output:
        first, second = (_command(marks, arguments) for marks in HALVES.values())
        other = subprocess.Popen(second, stdout=output, stderr=subprocess.STDOUT)
        try:
            codes = [subprocess.run(first, check=False).returncode, other.wait()]
        except BaseException:
            other.terminate()
            other.wait()
            raise
        output.seek(0)
        sys.stdout.buffer.write(b"\nThe tests without Spark:\n" + output.read())
        sys.stdout.flush()
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    for name, code in zip(HALVES, codes, strict=True):
        print(f"tests {name}: {'passed' if code == 0 else 'none' if code == NO_TESTS else f'FAILED ({code})'}")
    return max(failed, default=0 if 0 in codes else NO_TESTS)


def _command(marks: str, arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-m", marks, *arguments]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
