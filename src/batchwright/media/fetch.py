"""One image or sound from wherever it is: the network, a file, or the row itself."""

from __future__ import annotations

from collections.abc import Callable

from batchwright.core.media import Media, MediaLimits, MediaReference
from batchwright.media.content import check_media
from batchwright.media.files import read_file
from batchwright.media.http import fetch_url
from batchwright.media.inline import Find, inline_bytes
from batchwright.media.problems import MediaProblem

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 8.0


def fetch(
    reference: MediaReference,
    limits: MediaLimits,
    find: Find,
    pause: Callable[[float], bool],
) -> Media:
    """What a reference means, checked.

    Args:
        reference: one of the row's.
        limits: what may be fetched.
        find: gives what the row itself holds.
        pause: waits so many seconds; true if the work is to end.

    Raises:
        MediaProblem: what is wrong, after all attempts.
    """
    attempt = 0
    while True:
        try:
            data = _bytes(reference, limits, find)
            break
        except MediaProblem as problem:
            if not problem.may_pass or attempt >= limits.retries:
                raise
        if pause(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)):
            raise MediaProblem("media_unreachable", "the work was ended before it had come")
        attempt += 1
    name = reference.source or "the row's own " + reference.kind
    return check_media(reference.kind, data, limits, name)


def _bytes(reference: MediaReference, limits: MediaLimits, find: Find) -> bytes:
    if reference.at:
        return inline_bytes(find, reference.at, limits)
    if reference.source.lower().startswith(("http:", "https:")):
        return fetch_url(reference.source, limits)
    return read_file(reference.source, limits)
