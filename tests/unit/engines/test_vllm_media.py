"""The thread ahead of vLLM, with a renderer that is not vLLM's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from batchwright.core.errors import RowError
from batchwright.core.media import Media
from batchwright.core.records import Request
from batchwright.engines.vllm_media import MediaRenderer, Rendered, fitted
from tests.support.pictures import png

pytestmark = pytest.mark.vllm  # whose own errors the thread knows


class Cache:
    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def invalidate(self, item: str) -> None:
        self.forgotten.append(item)


class Renderer:
    """Makes five tokens of each image; the token 9 is refused as vLLM does it."""

    def __init__(self) -> None:
        self.mm_processor_cache = Cache()
        self.may_go = threading.Event()
        self.may_go.set()

    def render_cmpl(self, prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.may_go.wait(5)
        (prompt,) = prompts
        ids = prompt["prompt_token_ids"]
        assert 9 not in ids, "Failed to apply prompt replacement"
        images = prompt["multi_modal_data"]["image"]
        return [
            {
                "prompt_token_ids": ids + [7] * (5 * len(images)),
                "mm_hashes": {"image": [str(one.size) for one in images]},
            }
        ]


def asked(row: int, *images: bytes, ids: tuple[int, ...] = (1, 2)) -> Request:
    media = tuple(Media("image", "image/png", one) for one in images)
    return Request(row, list(ids), 8, "{}", "", media)


@pytest.fixture
def renderer() -> Renderer:
    return Renderer()


@pytest.fixture
def media(renderer: Renderer) -> Iterator[MediaRenderer]:
    media = MediaRenderer(renderer)
    yield media
    media.stop()


def collect(media: MediaRenderer, count: int) -> list[Rendered]:
    found: list[Rendered] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found += media.collect(0.05)
    return found


def test_rows_come_out_in_order_each_with_its_own_fault(media: MediaRenderer) -> None:
    broken = png(size=(99, 99))[:200]
    for row, one in enumerate([asked(0, png()), asked(1, broken), asked(2, png(), ids=(9,)),
                               asked(3, png(), png())]):  # fmt: skip
        media.submit(one._replace(row=row))
    found = collect(media, 4)
    assert [one.request.row for one in found] == [0, 1, 2, 3]
    assert [one.problem and one.problem.code for one in found] == [
        None, "bad_media", "engine_refused", None,
    ]  # fmt: skip
    assert [found[0].num_tokens, found[3].num_tokens] == [7, 12]
    assert media.collect(0.0) == []


def test_a_row_that_is_given_up_does_not_come_out_and_its_items_are_forgotten(
    media: MediaRenderer, renderer: Renderer
) -> None:
    renderer.may_go.clear()
    for row in range(3):
        media.submit(asked(row, png()))
    time.sleep(0.05)  # the first is in the renderer by now, which cannot be stopped
    media.abort([0, 1])
    media.submit(asked(1, png()))
    renderer.may_go.set()
    assert sorted(one.request.row for one in collect(media, 2)) == [1, 2]
    assert media.collect(0.0) == []
    assert renderer.mm_processor_cache.forgotten == ["(24, 16)"]


def test_an_answer_has_the_room_that_the_images_leave() -> None:
    one = Rendered(asked(0), {"prompt_token_ids": [1] * 95})
    assert fitted(one, 1000) == 8
    assert fitted(one, 100) == 5
    with pytest.raises(RowError, match="95 tokens") as caught:
        fitted(one, 95)
    assert caught.value.code == "prompt_too_long"
