"""One worker of a run as an actor of Ray: the same role that a local process has."""

from __future__ import annotations

import importlib
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

from batchwright import __version__
from batchwright.core.errors import BatchwrightError
from batchwright.executors.ray_cluster import node_here
from batchwright.executors.ray_metrics import RayMetrics
from batchwright.rundir.locations import is_address, location_of

# Named, not imported: what a worker does stands above those who place it.
ATTEND = "batchwright.running.roles:attend"


class Report(NamedTuple):
    """How a role ended, and what it could not go on with. A fault of ours comes as Ray's own error."""

    exit_code: int
    error: BatchwrightError | None = None


class RoleActor:
    """Does one role's work for a run, in the actor's own process.

    The process *is* the worker: when Ray or a signal kills it, its engine (a child that watches its
    parent) ends with it, and the cards are free for the next one.

    Args:
        location: of the run directory.
        role: what to do.
        name: of the worker.
        version: of batchwright on the driver.
    """

    def __init__(self, location: str, role: str, name: str, version: str) -> None:
        self._location = location
        self._role = role
        self._name = name
        self._version = version
        self._stop = threading.Event()

    def where(self) -> dict[str, Any]:
        """Answers as soon as the actor has its place."""
        return {"pid": os.getpid(), "host": os.uname().nodename, "node": node_here()}

    def run(self) -> Report:
        """Work until nothing is left; says how it ended."""
        module, _, attribute = ATTEND.partition(":")
        try:
            self._check_version()
            attend = getattr(importlib.import_module(module), attribute)
            with RayMetrics(self._location, self._role, self._name):
                attend(location_of(self._location), self._role, self._name, self._stop)
        except BatchwrightError as error:
            return Report(error.exit_code, self._explained(error))
        return Report(0)

    def stop(self) -> None:
        """Ask it to end in its own time."""
        self._stop.set()

    def _check_version(self) -> None:
        if self._version != __version__:
            raise BatchwrightError(
                f"node {os.uname().nodename} has batchwright {__version__}, and the run was started "
                f"by {self._version}",
                "Install the same version on every node, or leave run.ray.runtime_env unset.",
            )

    def _explained(self, error: BatchwrightError) -> BatchwrightError:
        """A node that does not see the run directory is the commonest mistake of all."""
        if is_address(self._location) or Path(self._location, "manifest.json").is_file():
            return error
        return type(error)(
            f"node {os.uname().nodename} does not see the run directory {self._location}",
            "Put it where every node finds it under the same name: shared storage, or s3://…",
        )
