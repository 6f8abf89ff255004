"""The state beside the event loop: calls in one thread, faults counted, and refused at once while they last."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from traincast.service._faults import StorageFault
from traincast.service._state import Queue, State

log = logging.getLogger("traincast.service")

P = ParamSpec("P")
T = TypeVar("T")

REFUSE_S = 0.5
"""After a fault calls are refused for so long without being tried: a locked file must not gather a crowd."""
CHECK_EVERY_S = 1.0
CHECK_PATIENCE_S = 3.0
"""A check that takes longer is a fault."""
CHECK_SOON_S = 0.05
"""Whoever asks waits no longer for a check while the one before is fresher than that patience."""


class Storage:
    """One state and what is known of its health."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.fault: StorageFault | None = None
        self.faults: Counter[str] = Counter()
        self.queue = Queue(counts={}, oldest_s=0.0)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state")
        self._refuse_until_s = 0.0
        self._checked_s = 0.0
        self._checking: asyncio.Task[None] | None = None

    async def write(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run a method of the state that changes it; a StorageFault is noted and rises."""
        if self.fault is not None and time.monotonic() < self._refuse_until_s:
            raise StorageFault(self.fault.kind, self.fault.details)
        found = await self.read(function, *arguments, **options)
        self._clear()
        return found

    async def read(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run a method of the state that changes nothing, which works where nothing can be written."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: function(*arguments, **options)
            )
        except StorageFault as fault:
            self._note(fault)
            raise

    def _note(self, fault: StorageFault) -> None:
        if self.fault is None or self.fault.kind != fault.kind:
            log.error("storage: %s (%s)", fault, fault.details)
        self.fault = fault
        self.faults[fault.kind] += 1
        self._refuse_until_s = time.monotonic() + REFUSE_S

    def _clear(self) -> None:
        if self.fault is not None:
            log.warning("storage: works again after: %s", self.fault)
        self.fault = None

    async def check(self) -> None:
        """Learn whether the state can be written and how its jobs stand; at most once a second, and some seconds late where that
        waits behind a large write."""
        if self._checking is None and time.monotonic() - self._checked_s >= CHECK_EVERY_S:
            self._checking = asyncio.create_task(self._check())
        if self._checking is None:
            return
        is_known = time.monotonic() - self._checked_s < CHECK_PATIENCE_S
        done, _ = await asyncio.wait([self._checking], timeout=CHECK_SOON_S if is_known else CHECK_PATIENCE_S)
        if not done and not is_known:
            self._note(StorageFault("unreachable", f"no answer within {CHECK_PATIENCE_S:g} s"))

    async def _check(self) -> None:
        def look() -> Queue:
            self.state.check()
            return self.state.read_queue()

        try:
            with contextlib.suppress(StorageFault):
                self.queue = await self.read(look)
                self._clear()
        finally:
            self._checked_s = time.monotonic()
            self._checking = None

    async def close(self) -> None:
        if self._checking is not None:
            await asyncio.gather(self._checking, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(self._thread, self.state.close)
        self._thread.shutdown(wait=False)
