"""The documentation's pages, and the shell blocks in them that are meant to be run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# `<!-- run -->` or `<!-- run: exit 4 -->`, then a bash block.
_BLOCK = re.compile(
    r"^<!-- run(?:: exit (?P<exit>\d+))? -->\n```bash\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Block:
    """A shell block: its code, the exit code it must have, and the line where it begins."""

    code: str
    exit_code: int
    line: int


def pages() -> list[Path]:
    """Every Markdown page of the project."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are marked to be run, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["code"], int(found["exit"] or 0), text.count("\n", 0, found.start()) + 3)
        for found in _BLOCK.finditer(text)
    ]
