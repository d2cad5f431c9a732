"""How many requests an endpoint gets at the same time: found out while it answers; without clock."""

from __future__ import annotations

START = 8

CUT = 0.7  # on 429, 503 and time-outs
STEP_SHARE = 1 / 32  # of the most, added per round once the first limit was met

# A round is as many answers as requests in flight, and not shorter than this.
ROUND_S = 1.0
WORTH_COMPARING = 1.2  # a limit larger than the last one judged by this
GAIN = 1.05
LOSS = 0.95
ROUNDS_HELD, ROUNDS_HELD_MOST = 8, 256  # twice as long each time

# Of the rows that the server runs: so many waiting there are enough, and so many too many.
ENOUGH_WAITING = 0.25
TOO_MANY_WAITING = 1.0
EASE = 0.9
FEW_WAITING = 4


class Window:
    """The limit of requests in flight to one endpoint.

    It doubles with each round at first, and grows by a fixed step per round once it has met a
    limit: a refusal (429, 503, a time-out), a larger window that brought no more tokens per
    second, or a server whose own queue is long enough. A refusal cuts it by a third, once for all
    requests that were sent before the cut.

    Args:
        most: that the limit may be.
        start: that it is at first.
    """

    def __init__(self, most: int, start: int = START) -> None:
        self._most = float(most)
        self._limit = float(min(start, most))
        self._step = max(1.0, most * STEP_SHARE)
        self._doubling = True
        self._held = 0  # rounds for which the limit does not grow
        self._hold_next = ROUNDS_HELD
        self._queued = False
        self._cut_at = float("-inf")
        self._judged: tuple[float, float] | None = None  # limit, tokens per second
        self._began_at: float | None = None
        self._round_limit = self._limit  # when the round began
        self._answers = 0
        self._tokens = 0
        self.cuts = 0

    @property
    def limit(self) -> int:
        """Requests that may be in flight."""
        return max(1, int(self._limit))

    def answered(self, now: float, tokens: int, *, full: bool) -> None:
        """A request was answered.

        Args:
            now: seconds that never go back.
            tokens: read and made for it.
            full: whether the limit kept others from being sent; one that is not met says nothing.
        """
        if self._began_at is None:
            self._began_at = now
        self._answers += 1
        self._tokens += tokens
        if full and not self._held and not self._queued:
            grown = 1.0 if self._doubling else self._step / self._limit
            self._limit = min(self._most, self._limit + grown)
        seconds = now - self._began_at
        if self._answers >= self._round_limit and seconds >= ROUND_S:
            if full:
                self._judge(self._tokens / seconds)
            self._new_round(now)

    def overloaded(self, now: float, sent_at: float) -> None:
        """A request that was sent at `sent_at` was refused for load, or timed out."""
        if sent_at < self._cut_at:
            return
        self._shrink(self._limit * CUT)
        self._cut_at = now
        self.cuts += 1
        self._new_round(now)

    def server_says(self, running: float, waiting: float) -> None:
        """The server's own gauges: a queue there makes nothing faster."""
        self._queued = waiting > FEW_WAITING + ENOUGH_WAITING * running
        if waiting > FEW_WAITING + TOO_MANY_WAITING * running:
            self._shrink(self._limit * EASE)

    def restart(self) -> None:
        """The endpoint was away: it begins again with few."""
        self._limit = min(self._limit, max(float(START), self._limit / 2))
        self._judged = None
        self._held = 0
        self._began_at = None
        self._round_limit = self._limit
        self._answers = self._tokens = 0

    def _shrink(self, limit: float) -> None:
        self._limit = max(1.0, limit)
        self._doubling = False

    def _new_round(self, now: float) -> None:
        self._held = max(0, self._held - 1)
        self._began_at = now
        self._round_limit = self._limit
        self._answers = self._tokens = 0

    def _judge(self, rate: float) -> None:
        """Compare this round with the last one at a smaller limit."""
        now = (self._round_limit, rate)
        if self._judged is None:
            self._judged = now
            return
        limit, before = self._judged
        if self._round_limit < limit * WORTH_COMPARING:
            # About the same limit: the figure to beat follows what the rows are like now.
            self._judged = (min(limit, self._round_limit), (before + rate) / 2)
            return
        if rate < before * LOSS:
            self._shrink(limit)
            self._hold()
            return
        if rate < before * GAIN:
            self._shrink(min(self._limit, self._round_limit))  # it grew while this round ran
            self._hold()
        else:
            self._hold_next = ROUNDS_HELD
        self._judged = now

    def _hold(self) -> None:
        """More brings nothing: look again, but less and less often."""
        self._doubling = False
        self._held = self._hold_next
        self._hold_next = min(ROUNDS_HELD_MOST, 2 * self._hold_next)
