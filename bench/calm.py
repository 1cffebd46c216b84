"""Is the machine quiet while we measure? On a shared host a core may run at 60 % of its speed for seconds.

A child pinned to each core counts how far it gets in a few milliseconds, before and after each measurement; a
measurement is quiet when every core reached nearly its best at both ends. Quiet and other samples are both kept.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

NEARLY = 0.88  # of the best seen
PROBE_MS = 40
_CHILD = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
for _ in sys.stdin:
    end, n, x = time.perf_counter() + float(sys.argv[2]) / 1e3, 0, 0
    while time.perf_counter() < end:
        for i in range(500):
            x += i * i
        n += 1
    print(n, flush=True)
"""


class Calm:
    """Probes of the given cores."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        self._children = [
            subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(core), str(PROBE_MS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ},
            )
            for core in cores
        ]
        self._best = [0] * len(cores)

    def __enter__(self) -> Self:
        for _ in range(20):
            self._probe()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            assert child.stdin
            child.stdin.close()
            child.wait()

    def _probe(self) -> list[int]:
        for child in self._children:
            assert child.stdin
            print("", file=child.stdin, flush=True)
        counts = [int(child.stdout.readline()) for child in self._children if child.stdout]
        self._best = [max(best, count) for best, count in zip(self._best, counts, strict=True)]
        return counts

    def watch(self, measure: Callable[[], float]) -> tuple[float, bool]:
        """(result, whether the machine was quiet at both ends)."""
        before = self._probe()
        result = measure()
        return result, self.quiet(before) and self.quiet(self._probe())

    def quiet(self, counts: list[int]) -> bool:
        """Whether all cores run at nearly their best."""
        return all(count >= NEARLY * best for count, best in zip(counts, self._best, strict=True))

    def now(self) -> bool:
        """Whether the machine is quiet at this moment."""
        return self.quiet(self._probe())
