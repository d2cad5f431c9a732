"""Which split a preparer takes next: the first free one, be it that its holder fell silent."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from batchwright.core.records import PreparedReceipt, Split
from batchwright.rundir import artifacts, layout
from batchwright.rundir.ledger import Ledger
from batchwright.rundir.storage import Storage

# Files are listed at most this often while there is nothing new to claim.
LOOK_AGAIN_S = 0.5

# While there is, whether the holder of the first one claimed has fallen silent is asked this often:
# rows are numbered in order, and no engine gets what comes after it.
LOOK_FOR_FALLEN_S = 5.0

_RECEIPT = re.compile(r"part-(\d+)-(\d+)\.json")


class SplitQueue:
    """Claims splits for one worker, in their order, with few looks at files: splits may be many.

    Args:
        storage: of the run.
        ledger: of the worker.
        splits: all of the run.
    """

    def __init__(self, storage: Storage, ledger: Ledger, splits: Iterable[Split]) -> None:
        self._storage = storage
        self._ledger = ledger
        self._untouched = deque(splits)
        self._claimed_by_others: dict[int, Split] = {}
        self._done: set[int] = set()
        self._parts_seen: dict[int, int] = {}
        self._looked_at = float("-inf")
        self._look()

    def take(self, now: float) -> Split | None:
        """Claim a split that is not prepared; None if none is free now. `now` is monotonic seconds."""
        pause_s = LOOK_FOR_FALLEN_S if self._untouched else LOOK_AGAIN_S
        if self._claimed_by_others and now - self._looked_at >= self._storage.seldom(pause_s):
            self._looked_at = now
            self._look()
            split = self._take_over(at_most=1 if self._untouched else len(self._claimed_by_others))
            if split is not None:
                return split
        return self._take_untouched()

    def _look(self) -> None:
        """Which splits are prepared, and which are claimed."""
        self._ledger.refresh()
        newest: dict[int, int] = {}
        for name in self._storage.names(layout.PREPARED):
            found = _RECEIPT.fullmatch(name)
            if found is not None:
                split, part = int(found[1]), int(found[2])
                newest[split] = max(part, newest.get(split, 0))
        news = [
            (split, part)
            for split, part in newest.items()
            if split not in self._done and self._parts_seen.get(split) != part
        ]
        bodies = self._storage.read_each([layout.prepared_receipt(*one) for one in news])
        for (split, part), body in zip(news, bodies, strict=True):
            self._parts_seen[split] = part
            name = layout.prepared_receipt(split, part)
            if artifacts.load(PreparedReceipt, body, name).last:
                self._done.add(split)
                self._claimed_by_others.pop(split, None)

    def _take_untouched(self) -> Split | None:
        while self._untouched:
            split = self._untouched.popleft()
            if split.ordinal in self._done:
                continue
            unit = layout.split_unit(split.ordinal)
            # Whether a holder has fallen silent is asked when there is nothing else to do.
            if not self._ledger.is_claimed(unit) and self._ledger.claim(unit):
                return split
            self._claimed_by_others[split.ordinal] = split
        return None

    def _take_over(self, at_most: int) -> Split | None:
        for ordinal, split in list(self._claimed_by_others.items())[:at_most]:
            if self._ledger.claim(layout.split_unit(ordinal)):
                del self._claimed_by_others[ordinal]
                return split
        return None
