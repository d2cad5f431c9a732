"""Which workers have stopped without saying so: the last watchdog, for when their own fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a worker may show nothing new.

    Attributes:
        silent_s: no sign of life at all: the process is frozen, or cannot reach the run directory.
        stuck_s: signs of life, rows in the engine, and nothing that comes of it. More than the
            engine's own watchdog and all its restarts take; infinite where rows may wait for ever.
    """

    silent_s: float
    stuck_s: float


@dataclass(slots=True)
class _Seen:
    beat: Any
    beat_at: float
    work: Any
    work_at: float


class StallWatch:
    """Remembers what each worker showed, and when that last changed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._seen: dict[str, _Seen] = {}

    def look(self, now: float, heartbeats: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Names of the workers to end, and why. `now` is monotonic seconds.

        Args:
            now: monotonic seconds.
            heartbeats: the last one of each living worker; empty for one that has sent none yet.
        """
        found: dict[str, str] = {}
        for name, state in heartbeats.items():
            if not state or state.get("ended"):
                self._seen.pop(name, None)
                continue
            seen = self._seen.setdefault(name, _Seen(None, now, None, now))
            if state.get("beat") != seen.beat:
                seen.beat, seen.beat_at = state.get("beat"), now
            if not state.get("oldest") or _work(state) != seen.work:
                seen.work, seen.work_at = _work(state), now
            if now - seen.beat_at > self._limits.silent_s:
                found[name] = f"no sign of life for {now - seen.beat_at:.0f} s"
            elif now - seen.work_at > self._limits.stuck_s:
                found[name] = f"nothing has come of its rows for {now - seen.work_at:.0f} s"
        return found


def _work(state: Mapping[str, Any]) -> tuple[Any, ...]:
    """What changes while a worker gets on."""
    return tuple(state.get(key) for key in ("phase", "uncommitted", "rows", "work"))
