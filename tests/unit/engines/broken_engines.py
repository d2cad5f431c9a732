"""Engines that fail to start, named by the tests as `module:Class` and run in a child process."""

from __future__ import annotations

import sys
import time

from batchwright.core.errors import EngineDied, EngineError, JobError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineInfo, EngineSettings
from batchwright.engines.fake import FakeEngine


class RefusesJob(FakeEngine):
    def start(self, settings: EngineSettings) -> EngineInfo:
        raise JobError("the model folder has no weights", "Download them.")


class CannotBeImported(FakeEngine):
    def preload(self, settings: EngineSettings) -> None:
        raise JobError("a package is missing", "Install it.")


class LoadsForEver(FakeEngine):
    def preload(self, settings: EngineSettings) -> None:
        print("loading", flush=True)
        time.sleep(3600)


class CrashesAtStart(FakeEngine):
    def start(self, settings: EngineSettings) -> EngineInfo:
        print("on stdout")
        sys.exit("out of luck")


class DiesPolitely(FakeEngine):
    """Raises instead of vanishing, after the first outcomes."""

    def step(self, timeout_s: float) -> list[Outcome]:
        if self.gauges().steps:
            raise EngineDied("the core is gone")
        return super().step(timeout_s)


class HasNoMemory(FakeEngine):
    """Ends at its start as an engine whose core found no room for the KV cache."""

    def start(self, settings: EngineSettings) -> EngineInfo:
        print(
            "(EngineCore pid=7) ERROR 05-05 12:36:59 [core.py:1510] Traceback (most recent call last):"
        )
        print("ValueError: No available memory for the cache blocks. Try increasing", flush=True)
        raise EngineError(
            "vLLM did not start with m: Engine core initialization failed. See above."
        )
