"""When to start one more engine on a card, and whether it was worth it."""

from __future__ import annotations

from typing import Literal

# A rate is taken over this long, and not before the engines have run side by side for a while.
WINDOW_S = 20.0
SETTLE_S = 5.0
# One engine more is kept if the card then does this much more work.
LEAST_GAIN = 1.05
# An engine takes a minute to start: with less left than this it would bring nothing.
LEAST_LEFT_S = 240.0

Step = Literal["add", "drop"]


class Growth:
    """Adds engines to each card one at a time while each makes the card do more.

    Args:
        most: engines on a card at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._engines = 1
        self._best = 0.0
        self._added = False
        self._window: tuple[float, float] | None = None
        self._ended = most <= 1

    def look(self, now: float, engines_up: int, work: float, left_s: float | None) -> Step | None:
        """What to do now.

        Args:
            now: seconds that never go back.
            engines_up: engines on each card that take rows.
            work: tokens computed so far, prompt and output, by all engines.
            left_s: seconds to the end of the job at the present rate; None if not known.
        """
        if self._ended:
            return None
        if engines_up < self._engines:  # one is starting, or has died
            self._window = None
            return None
        if self._window is None or work < self._window[1]:
            self._window = (now + SETTLE_S, work) if self._window is None else (now, work)
            return None
        since, before = self._window
        if now < since:
            self._window = (since, work)
            return None
        if now - since < WINDOW_S:
            return None
        return self._judge((work - before) / (now - since), left_s)

    @property
    def on_trial(self) -> bool:
        """Whether the newest engine has still to show that it is worth it."""
        return self._added

    def give_up(self) -> None:
        """The newest engine cannot run: it is gone, and no other is tried."""
        self._ended, self._added = True, False
        self._engines -= 1

    def _judge(self, rate: float, left_s: float | None) -> Step | None:
        self._window = None
        if self._added and rate < LEAST_GAIN * self._best:
            self.give_up()
            return "drop"
        self._best, self._added = rate, False
        if self._engines == self._most:
            self._ended = True
            return None
        if left_s is None or left_s < LEAST_LEFT_S:
            return None
        self._engines += 1
        self._added = True
        return "add"
