"""One event loop per process, in a thread of its own: all batches share its connections and its gate."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")

#: Longest time for which a thread that stores results keeps the loop waiting; Python's own 5 ms, several
#: times per call, cost a sixth of the throughput.
SWITCH_S = 0.0005

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process: a forked child has no use for its parent's


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the process's loop and wait for its result; to be called from any other thread."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            sys.setswitchinterval(SWITCH_S)
            threading.Thread(target=loop.run_forever, name="assay-calls", daemon=True).start()
        return loop
