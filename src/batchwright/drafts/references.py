"""What the rows of a file say of images and sounds: references, and the tokens that they take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from batchwright.config.job import Job
from batchwright.core.errors import RowError
from batchwright.core.media import MediaLimits, MediaReference, find_inline
from batchwright.core.records import SourceFile
from batchwright.media.content import image_size
from batchwright.media.files import read_file
from batchwright.media.inline import inline_bytes
from batchwright.rundir.manifest import Manifest
from batchwright.tokens.media import load_media_tokens
from batchwright.validate.media import MediaForms

# An image's size stands in its first bytes, unless a camera put a large preview ahead of it.
_HEAD_BYTES = 1 << 16


def media_limits(job: Job, files: Iterable[SourceFile]) -> MediaLimits:
    """The job's limits; without folders of its own, files may lie where the input does."""
    limits = job.media_limits(str(Path(file.path).parent) for file in files)
    roots = tuple(os.path.abspath(root) for root in limits.allowed_roots)  # noqa: PTH100
    return replace(limits, allowed_roots=roots)


class MediaReader:
    """Reads the references of rows, and counts what they add to a prompt."""

    def __init__(self, job: Job, manifest: Manifest) -> None:
        self._limits = media_limits(job, manifest.files)
        self._counts = load_media_tokens(job.model.name, job.model.revision)
        self._path = ""
        self.forms = MediaForms(self._limits.allowed_roots)

    def enter(self, path: str) -> None:
        """Take relative paths from now on from the folder of this input file."""
        if path != self._path:
            self._path = path
            folder = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120
            self.forms = self.forms.below(folder)

    def count(self, references: Sequence[MediaReference], row: Any) -> int:
        """Tokens that a row's media add to its prompt.

        Exact where the model takes each image for as many tokens, or where their number follows
        from its size and the image is at hand; else a guess. Nothing is fetched for this.
        """
        total = 0
        for one in references:
            wanted = one.kind == "image" and self._counts.needs_size
            total += self._counts.count(one.kind, self._size(one, row) if wanted else None)
        return total

    def _size(self, reference: MediaReference, row: Any) -> tuple[int, int] | None:
        if reference.source.lower().startswith(("http:", "https:")):
            return None
        try:
            if reference.at:
                data = inline_bytes(partial(find_inline, row), reference.at, self._limits)
            else:
                data = read_file(reference.source, self._limits, head_bytes=_HEAD_BYTES)
            return image_size(data, "the image")
        except RowError:
            return None  # the worker will say what is wrong with it
