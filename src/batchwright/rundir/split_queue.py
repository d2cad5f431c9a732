"""Which split a preparer takes next: the first free one, be it that its holder fell silent."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from batchwright.core.records import PreparedReceipt, Split
from batchwright.rundir import artifacts, layout
from batchwright.rundir.ledger import Ledger
from batchwright.rundir.storage import READS_AT_ONCE, Storage

# Splits of others are looked at no more often than this while there is nothing new to claim.
LOOK_AGAIN_S = 0.5

# While there is, whether the holder of the first one that is not prepared has fallen silent is asked
# this often: rows are numbered in order, and no engine gets what comes after it.
LOOK_FOR_FALLEN_S = 5.0

_RECEIPT = re.compile(r"part-(\d+)-\d+\.json")


class SplitQueue:
    """Claims splits for one worker, in their order.

    Splits may be many, so no folder is listed again and again as a whole: a split is claimed without a
    look at what is claimed (in an object store, while others are ahead, with a look at what comes
    after it), and whether one of another's is prepared is asked by the name of the receipt that it
    lacks. Each receipt is read once.

    Args:
        storage: of the run.
        ledger: of the worker.
        splits: those that may lack a part, by their ordinals.
    """

    def __init__(self, storage: Storage, ledger: Ledger, splits: Iterable[Split]) -> None:
        self._storage = storage
        self._ledger = ledger
        self._parts_seen: dict[int, int] = {}  # of splits that lack a part
        self._claimed_by_others: deque[Split] = deque()
        self._others_ahead = False
        self._looked_at = float("-inf")
        self._untouched = deque(self._not_prepared_before(list(splits)))
        self._ledger.refresh()

    def take(self, now: float) -> Split | None:
        """Claim a split that is not prepared; None if none is free now. `now` is monotonic seconds."""
        pause_s = LOOK_FOR_FALLEN_S if self._untouched else LOOK_AGAIN_S
        if self._claimed_by_others and now - self._looked_at >= self._storage.seldom(pause_s):
            self._looked_at = now
            split = self._take_over()
            if split is not None:
                return split
        return self._take_untouched()

    def pass_over(self, first_open: int) -> None:
        """Forget the splits before this one: the order says that they are prepared."""
        for splits in (self._claimed_by_others, self._untouched):
            while splits and splits[0].ordinal < first_open:
                self._parts_seen.pop(splits.popleft().ordinal, None)

    def _not_prepared_before(self, splits: list[Split]) -> list[Split]:
        """By one listing, which has nothing where a run begins."""
        after = layout.prepared_receipt(splits[0].ordinal, 0).rpartition("-")[0] if splits else ""
        names = self._storage.names(layout.PREPARED, after=after.rpartition("/")[2])
        begun = {int(found[1]) for name in names if (found := _RECEIPT.fullmatch(name))}
        left = self._unprepared([split for split in splits if split.ordinal in begun])
        lacking = {split.ordinal for split in left}
        return [one for one in splits if one.ordinal not in begun or one.ordinal in lacking]

    def _unprepared(self, splits: list[Split]) -> list[Split]:
        """Those of some splits that lack a part."""
        prepared: set[int] = set()
        asked = splits
        while asked:
            paths = [
                layout.prepared_receipt(split.ordinal, self._parts_seen.get(split.ordinal, 0))
                for split in asked
            ]
            bodies = self._storage.read_awaited(paths)
            further = []
            for split, path, body in zip(asked, paths, bodies, strict=True):
                if body is None:
                    continue
                if artifacts.load(PreparedReceipt, body, path).last:
                    prepared.add(split.ordinal)
                    self._parts_seen.pop(split.ordinal, None)
                else:
                    self._parts_seen[split.ordinal] = self._parts_seen.get(split.ordinal, 0) + 1
                    further.append(split)
            asked = further
        return [split for split in splits if split.ordinal not in prepared]

    def _take_untouched(self) -> Split | None:
        if self._others_ahead and self._untouched:
            unit = layout.split_unit(self._untouched[0].ordinal)
            self._ledger.refresh(after=unit)
            self._others_ahead = self._ledger.is_claimed(unit)
        while self._untouched:
            split = self._untouched.popleft()
            unit = layout.split_unit(split.ordinal)
            # Whether a holder has fallen silent is asked when there is nothing else to do.
            if not self._ledger.is_claimed(unit):
                if self._ledger.claim(unit):
                    return split
                if not self._storage.is_local:  # a refusal is two requests, and this is one for all
                    self._ledger.refresh(after=unit)
                    self._others_ahead = True
            self._claimed_by_others.append(split)
        return None

    def _take_over(self) -> Split | None:
        for split in self._first_open() if self._untouched else self._all_open():
            if self._ledger.claim(layout.split_unit(split.ordinal)):
                self._claimed_by_others.remove(split)
                return split
        return None

    def _all_open(self) -> list[Split]:
        self._claimed_by_others = deque(self._unprepared(list(self._claimed_by_others)))
        return list(self._claimed_by_others)

    def _first_open(self) -> list[Split]:
        """The first split of others that lacks a part, if there is one; those before it are forgotten.

        Later ones are not looked at: while the first takes its time, others may prepare thousands.
        """
        others = self._claimed_by_others
        while others:
            first = [others.popleft() for _ in range(min(READS_AT_ONCE, len(others)))]
            still_open = self._unprepared(first)
            others.extendleft(reversed(still_open))
            if still_open:
                return still_open[:1]
        return []
