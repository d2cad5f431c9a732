"""How a command ends: by an exit code, by an error, or because it is asked to."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from batchwright.cli import render
from batchwright.core.errors import EXIT_MANY_FAILED, BatchwrightError, Interrupted, Stopped


def leave(many_failed: bool) -> None:  # noqa: FBT001
    """Exit code 4 when more rows are without an answer than the job allows."""
    if many_failed:
        raise typer.Exit(EXIT_MANY_FAILED)


def end_process(code: str | int | None) -> NoReturn:
    """End this process with an exit code that nothing can change any more.

    The interpreter's own end was seen to abort now and then (`terminate called without an active
    exception`, from a thread of a C++ library), which turns a finished command's 0 into 134. All
    work is done and all files are closed by now.
    """
    if isinstance(code, str):
        render.say(code)
        code = 1
    with contextlib.suppress(OSError):  # whoever read the output may be gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


def open_standard_streams() -> None:
    """Put the null device where a standard stream is closed, as some schedulers and daemons leave it.

    Else the next file that is opened, one of the run's own, gets its number, and what a library or an
    engine prints goes into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one: those before it are open.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)  # noqa: FBT003
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def run_to_the_end(command: Callable[[], None]) -> NoReturn:
    """Run the command line, and leave with its exit code; with `--json` all of it is told so."""
    open_standard_streams()
    as_json = "--json" in sys.argv[1:]
    try:
        command()
    except SystemExit as ended:
        # What all of Click's own errors have: the line was refused before its command began.
        told = getattr(ended.__context__, "format_message", None)
        if as_json and told is not None:
            _show_as_json("JobError", told(), "`--help` shows the options of a command.", 2)
        end_process(ended.code)
    except Exception as fault:
        if as_json:
            hint = "This is a fault in batchwright; please report it with what stands on stderr."
            _show_as_json(type(fault).__name__, str(fault), hint, 1)
        raise
    end_process(0)


def _show_as_json(kind: str, message: str, hint: str, exit_code: int) -> None:
    body = {"kind": kind, "message": message, "hint": hint}
    render.show_json({"error": body, "exit_code": exit_code})


@contextmanager
def ending(*, as_json: bool) -> Iterator[None]:
    """Turn an error of ours into its message and exit code."""
    try:
        yield
    except BatchwrightError as error:
        render.show_error(error, as_json=as_json)
        raise typer.Exit(error.exit_code) from None


def _that_end() -> list[signal.Signals]:
    """Signals that ask for an end: also that the terminal is gone, unless `nohup` says to take no notice."""
    gone = getattr(signal, "SIGHUP", None)
    heeded = gone is not None and signal.getsignal(gone) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([gone] if gone is not None and heeded else [])]


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM, SIGHUP and Ctrl-C set; a second Ctrl-C ends at once."""
    stop = threading.Event()
    received: list[int] = []

    def on_signal(number: int, _: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in _that_end()}
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
