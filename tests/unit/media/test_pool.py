from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from batchwright.core.media import Media, MediaLimits, MediaReference, media_extras
from batchwright.core.records import Request
from batchwright.media.pool import MediaPool
from batchwright.media.problems import MediaProblem


def asked(row: int, *sources: str) -> Request:
    references = [MediaReference("image", source) for source in sources]
    extras = orjson.dumps(media_extras(references, 7)).decode() if sources else ""
    return Request(row, [1], 4, "{}", extras)


def nothing(_: Any) -> Any:
    raise LookupError


class Fetcher:
    """Gives the name of the source as content, once `open` for that source is set."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.open: dict[str, threading.Event] = {}
        self.begun: list[str] = []

    def __call__(
        self, one: MediaReference, _: MediaLimits, __: Any, pause: Callable[[float], bool]
    ) -> Media:
        self.begun.append(one.source)
        if one.source in self.open:
            self.open[one.source].wait(5)
        if one.source.startswith("bad"):
            raise MediaProblem("media_not_found", f"{one.source} is not there")
        if one.source == "fault":
            raise ZeroDivisionError("a fault of ours")
        return Media("image", "image/png", one.source.encode() * self.size)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def fetcher() -> Fetcher:
    return Fetcher()


def take(pool: MediaPool, count: int) -> list[Request]:
    found: list[Request] = []

    def enough() -> bool:
        found.extend(pool.take(count - len(found)))
        return len(found) == count

    until(enough)
    return found


def test_rows_whose_media_are_late_are_passed_over(fetcher: Fetcher) -> None:
    fetcher.open["slow"] = threading.Event()
    pool = MediaPool(MediaLimits(workers=2), fetch_one=fetcher)
    for row, source in enumerate(["slow", "b", "c", "d"]):
        pool.submit(asked(row, source), nothing)
    assert {one.row for one in take(pool, 3)} == {1, 2, 3}
    assert pool.rows == 1
    fetcher.open["slow"].set()
    (late,) = take(pool, 1)
    assert (late.row, late.media) == (0, (Media("image", "image/png", b"slow"),))
    assert pool.rows == 0
    pool.stop()


def test_a_row_has_all_its_media_in_order_or_fails_with_its_code(fetcher: Fetcher) -> None:
    pool = MediaPool(MediaLimits(workers=2), fetch_one=fetcher)
    pool.submit(asked(0, "a", "b"), nothing)
    pool.submit(asked(1, "a", "bad"), nothing)
    pool.submit(asked(2), nothing)
    rows = {one.row: [item.data for item in one.media] for one in take(pool, 2)}
    assert rows == {0: [b"a", b"b"], 2: []}
    failed = []
    until(lambda: failed.extend(pool.take_failed()) or failed)
    (outcome,) = failed
    assert (outcome.row, outcome.error_code) == (1, "media_not_found")
    assert pool.rows == 0
    pool.stop()


def test_what_waits_for_the_engine_is_bounded_in_bytes() -> None:
    fetcher = Fetcher(size=100)
    pool = MediaPool(MediaLimits(workers=1), fetch_one=fetcher, most_bytes=250)
    for row in range(10):
        pool.submit(asked(row, "x"), nothing)
    until(lambda: len(fetcher.begun) >= 3)
    time.sleep(0.05)
    assert len(fetcher.begun) == 3, "300 bytes wait; no more are fetched"
    take(pool, 1)
    until(lambda: len(fetcher.begun) == 4)
    take(pool, 9)
    pool.stop()


def test_more_rows_are_called_up_only_where_there_are_media(fetcher: Fetcher) -> None:
    pool = MediaPool(MediaLimits(workers=1), fetch_one=fetcher)
    assert not pool.wants_more
    for row in range(8):
        assert row == 0 or pool.wants_more
        pool.submit(asked(row, "x"), nothing)
    assert not pool.wants_more
    take(pool, 8)
    assert pool.wants_more
    pool.stop()


def test_a_fault_of_ours_is_raised_and_not_waited_for(fetcher: Fetcher) -> None:
    pool = MediaPool(MediaLimits(workers=1), fetch_one=fetcher)
    pool.submit(asked(0, "fault"), nothing)
    pool.wait(5)
    with pytest.raises(ZeroDivisionError):
        pool.take(1)
    pool.stop()
