"""Starts vLLM's own API server again and again without importing vLLM each time.

Run as a program it reads one line of JSON arguments per start from stdin, forks the server, and
writes its process id. The server's processes are forked too: three imports of vLLM, one after the
other, would take a minute.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time


def serve(arguments: list[str]) -> None:
    """Be the server. Never returns."""
    from vllm.entrypoints.launchers.api_server.entry import main

    os.setsid()
    threading.Thread(target=end_with_parent, args=[os.getppid()], daemon=True).start()
    forking = multiprocessing.get_context("fork")
    # On CPUs vLLM asks for `spawn` by name.
    multiprocessing.get_context = lambda method=None: forking  # type: ignore[assignment,misc]
    sys.argv = ["vllm", *arguments]
    main()


def end_with_parent(parent: int) -> None:
    """No server outlives its test, however that ends."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def run() -> None:
    """Fork a server for each line of stdin; end when there are no more."""
    import vllm.entrypoints.launchers.api_server.entry  # what takes the time
    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout is for process ids
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            out.close()
            serve(json.loads(line))
            os._exit(0)
        print(pid, file=out, flush=True)


if __name__ == "__main__":
    run()
