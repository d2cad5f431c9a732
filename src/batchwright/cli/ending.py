"""How a command ends: by an exit code, by an error, or because it is asked to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from batchwright.cli import render
from batchwright.core.errors import EXIT_MANY_FAILED, BatchwrightError, Interrupted, Stopped


def leave(many_failed: bool) -> None:  # noqa: FBT001
    """Exit code 4 when more rows are without an answer than the job allows."""
    if many_failed:
        raise typer.Exit(EXIT_MANY_FAILED)


@contextmanager
def ending(*, as_json: bool) -> Iterator[None]:
    """Turn an error of ours into its message and exit code."""
    try:
        yield
    except BatchwrightError as error:
        render.show_error(error, as_json=as_json)
        raise typer.Exit(error.exit_code) from None


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; a second Ctrl-C ends at once."""
    stop = threading.Event()
    received: list[int] = []

    def on_signal(number: int, _: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)
        stop.set()

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    except Stopped as stopped:
        if received and received[0] == signal.SIGINT:
            raise Interrupted(stopped.message, stopped.hint) from None
        raise
    except KeyboardInterrupt:
        raise Interrupted("interrupted", "Run the same command again: it goes on.") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
