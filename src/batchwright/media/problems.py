"""Why an image or a sound could not be had, and whether it may be worth another attempt."""

from __future__ import annotations

from batchwright.core.errors import RowError


class MediaProblem(RowError):
    """One image or sound cannot be had: its row fails.

    Args:
        code: a key of `FAILURE_CODES`.
        message: what is wrong, for people.
        may_pass: whether the same attempt may succeed a moment later.
    """

    def __init__(self, code: str, message: str, *, may_pass: bool = False) -> None:
        super().__init__(code, message)
        self.may_pass = may_pass
