"""Which script a text is written in, cheaply."""

from __future__ import annotations

import numpy as np

SCRIPTS = ("latin", "cjk", "cyrillic", "arabic", "other")

# Enough of a text to know.
CHARACTERS = 400

# First code point of a stretch and what it is (-1: no letter). From Unicode's Blocks.txt.
_STRETCHES = (
    (0x0, -1), (0x41, 0), (0x5B, -1), (0x61, 0), (0x7B, -1), (0xC0, 0), (0x250, 4),
    (0x400, 2), (0x530, 4), (0x600, 3), (0x700, 4), (0x750, 3), (0x780, 4), (0x1E00, 0),
    (0x1F00, 4), (0x2000, -1), (0x2C00, 4), (0x2E80, 1), (0x3000, -1), (0x3040, 1),
    (0xA000, 4), (0xAC00, 1), (0xD7B0, 4), (0xE000, -1), (0xF900, 1), (0xFB00, 4), (0xFB50, 3),
    (0xFE00, -1), (0xFE70, 3), (0xFF00, -1), (0xFF21, 0), (0xFF3B, -1), (0xFF41, 0),
    (0xFF5B, -1), (0xFF66, 1), (0xFFE0, -1), (0x10000, 4), (0x1F000, -1), (0x20000, 1),
    (0x40000, -1),
)  # fmt: skip
_STARTS = np.array([start for start, _ in _STRETCHES])
_KINDS = np.array([kind for _, kind in _STRETCHES])


def main_script(text: str) -> int:
    """Index into `SCRIPTS` of the script that most letters of a text's beginning have, or -1."""
    head = text[:CHARACTERS]
    if head.isascii():
        return 0 if any(map(str.isalpha, head)) else -1
    points = np.frombuffer(head.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    kinds = _KINDS[np.searchsorted(_STARTS, points, "right") - 1]
    letters = np.bincount(kinds[kinds >= 0], minlength=len(SCRIPTS))
    return int(letters.argmax()) if letters.any() else -1
