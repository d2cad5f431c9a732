"""Workers as actors of a Ray cluster: Ray finds them a place, receipts say what counts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchwright import __version__
from batchwright.config.cluster import RayCluster
from batchwright.core.errors import EngineError, JobError, Stopped
from batchwright.executors.local import MAX_RESTARTS, Ended
from batchwright.executors.patience import Patience
from batchwright.executors.ray_actor import Report, RoleActor
from batchwright.executors.ray_cluster import (
    connect,
    draining_nodes,
    free_resources,
    living_nodes,
)
from batchwright.executors.room import Need, Node, listed, missing

PREPARE = "prepare"

# Threads of an actor: one works, the others answer while it does.
_ACTOR_THREADS = 3

_TOO_SMALL_HINT = (
    "Lower run.replicas, let fewer be enough with run.ray.min_replicas (more are taken as they "
    "come), or change run.ray.gpus_per_engine and cpus_per_engine."
)

# An actor that is killed is gone when Ray says so, within this time.
_KILL_WAIT_S = 5.0

# Ray is asked this often what is free, and which nodes will go.
_ASK_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the run asks of the cluster.

    Attributes:
        engines: that run at the same time at most.
        least_engines: without which it is no use to begin.
        gpus: of one engine.
        needs_cards: whether it cannot do without; else it takes them where the cluster has any.
        preparers: processes that read and tokenise.
    """

    engines: int
    least_engines: int
    gpus: float
    needs_cards: bool
    preparers: int


@dataclass(slots=True)
class _Placed:
    role: str
    name: str
    handle: Any
    place: Any  # ready when the actor runs
    end: Any  # ready when its role has ended
    is_placed: bool = False
    node: str = ""
    has_to_leave: bool = False


class RayExecutor:
    """Starts workers as actors, watches them and stops them.

    All are asked for at once. Ray places as many as there is room for, and the rest as nodes come;
    what waits is also what makes its autoscaler add nodes. The driver restarts what dies, under a
    new name, so that a lease can tell the two apart.

    Args:
        location: of the run directory, as every node finds it.
        log_dir: the traceback of a worker that failed goes to a file here.
        cluster: the section `run.ray`.
        wanted: what to ask for.
    """

    def __init__(self, location: str, log_dir: Path, cluster: RayCluster, wanted: Wanted) -> None:
        self._location = location
        self._log_dir = log_dir
        self._cluster = cluster
        self._wanted = wanted
        self._ray: Any = None
        self._gpus = 0.0
        self._workers: list[_Placed] = []
        self._patience = Patience(wanted.least_engines, cluster.place_timeout_s)
        self._asked_at = float("-inf")
        self._scarcity = ""

    @property
    def max_restarts(self) -> int:
        """Deaths in a row without progress: a node that goes takes all its workers along."""
        return MAX_RESTARTS * max(1, self._wanted.engines + self._wanted.preparers)

    @property
    def running(self) -> list[str]:
        """Roles of the workers that have a place."""
        return [worker.role for worker in self._workers if worker.is_placed]

    @property
    def starting(self) -> str:
        """What is waited for while no worker works."""
        waiting = sum(not worker.is_placed for worker in self._workers)
        if not waiting:
            return "starting workers"
        scarcity = f"; {self._scarcity}" if self._scarcity else ""
        return f"waiting for a place on Ray ({waiting} of {len(self._workers)} workers{scarcity})"

    def places(self, replicas: int, gpus_each: int) -> Sequence[str | None]:  # noqa: ARG002
        """One place per replica; which cards it gets is Ray's to say.

        Raises:
            JobError: there is no such cluster, or it is too small.
        """
        cluster, wanted = self._cluster, self._wanted
        cpus = (
            wanted.engines * cluster.cpus_per_engine + wanted.preparers * cluster.cpus_per_prepare
        )
        self._ray = connect(cluster, cpus)
        nodes = living_nodes(self._ray)
        has_cards = any(node.has.get("GPU", 0) for node in nodes)
        self._gpus = wanted.gpus if wanted.needs_cards or has_cards else 0.0
        shortage = too_small(self._needs(), nodes)
        if shortage is not None:
            raise shortage
        return [None] * replicas

    def start(self, role: str, name: str, gpus: str | None = None) -> None:
        """Ask Ray for one worker. `gpus` is for executors that choose the cards."""
        assert gpus is None, "Ray chooses the cards"
        handle = (
            self._ray.remote(RoleActor)
            .options(
                name=name,
                max_concurrency=_ACTOR_THREADS,
                max_restarts=0,
                **resource_options(self._each(role)),
            )
            .remote(self._location, role, name, __version__)
        )
        place, end = handle.where.remote(), handle.run.remote()
        self._workers.append(_Placed(role, name, handle, place, end))

    def poll(self) -> list[Ended]:
        """The workers that have ended since the last call.

        Raises:
            EngineError: no engine has a place in time, or all have lost theirs for as long.
        """
        self._look_at_places()
        ended = []
        for worker in self._ready([worker.end for worker in self._workers]):
            self._workers.remove(worker)
            ended.append(self._end_of(worker))
        if any(one.role == PREPARE and one.exit_code == 0 and not one.has_left for one in ended):
            self._dismiss_waiting(PREPARE)
        now = time.monotonic()
        if now - self._asked_at >= _ASK_EVERY_S:
            self._asked_at = now
            self._clear_draining_nodes()
            self._scarcity = self._scarce() if not self.running else ""
        self._refuse_to_wait_for_ever(now)
        return ended

    def stop(self, name: str) -> None:
        """Ask one worker to stop; it ends in its own time."""
        for worker in self._workers:
            if worker.name == name:
                worker.handle.stop.remote()

    def kill(self, name: str) -> None:
        """End a worker that does not answer; the next poll tells of it."""
        for worker in self._workers:
            if worker.name == name:
                self._ray.kill(worker.handle)

    def cancel(self, grace_s: float) -> None:
        """Ask every worker to stop; after the grace time, make it."""
        placed = [worker for worker in self._workers if worker.is_placed]
        for worker in placed:
            worker.handle.stop.remote()
        if placed:
            ends = [worker.end for worker in placed]
            self._ray.wait(ends, num_returns=len(ends), timeout=grace_s, fetch_local=False)
        for worker in self._workers:
            self._ray.kill(worker.handle)
        ends = [worker.end for worker in self._workers]
        if ends:  # their cards are free for the next start once they are gone
            self._ray.wait(ends, num_returns=len(ends), timeout=_KILL_WAIT_S, fetch_local=False)
        self._workers.clear()

    def _ready(self, references: list[Any]) -> list[_Placed]:
        if not references:
            return []
        done, _ = self._ray.wait(
            references, num_returns=len(references), timeout=0, fetch_local=False
        )
        found = set(done)
        return [worker for worker in self._workers if worker.end in found or worker.place in found]

    def _look_at_places(self) -> None:
        waiting = [worker.place for worker in self._workers if not worker.is_placed]
        for worker in self._ready(waiting):
            # One that died on its way, on a node that is gone, has had no place; its end will tell.
            with contextlib.suppress(self._ray.exceptions.RayError):
                worker.node = self._ray.get(worker.place)["node"]
                worker.is_placed = True

    def _dismiss_waiting(self, role: str) -> None:
        """There is nothing left to do for those without a place; an autoscaler must not see them."""
        for worker in [one for one in self._workers if one.role == role and not one.is_placed]:
            self._ray.kill(worker.handle)
            self._workers.remove(worker)

    def _clear_draining_nodes(self) -> None:
        """Have workers commit what is finished while their machine is still there."""
        if not self.running:
            return
        going = draining_nodes(self._ray)
        for worker in self._workers:
            if worker.node in going and not worker.has_to_leave:
                worker.has_to_leave = True
                worker.handle.stop.remote()

    def _end_of(self, worker: _Placed) -> Ended:
        errors = self._ray.exceptions
        try:
            report: Report = self._ray.get(worker.end)
        except errors.RuntimeEnvSetupError as error:
            raise JobError(
                f"Ray cannot set up the runtime environment: {error}",
                "Look at run.ray.runtime_env.",
            ) from error
        except errors.RayActorError as error:  # the process or its node is gone, or out of reach
            self._ray.kill(worker.handle)  # two on the same cards would both fail
            self._write_log(worker.name, str(error))
            return Ended(worker.role, worker.name, -9)
        except errors.RayTaskError as error:  # a fault of ours
            self._write_log(worker.name, str(error))
            return Ended(worker.role, worker.name, 1)
        if worker.has_to_leave and isinstance(report.error, Stopped | None):
            return Ended(worker.role, worker.name, report.exit_code, has_left=True)
        return Ended(worker.role, worker.name, report.exit_code, error=report.error)

    def _write_log(self, name: str, words: str) -> None:
        self._log_dir.mkdir(parents=True, exist_ok=True)
        with (self._log_dir / f"{name}.log").open("a", encoding="utf-8") as log:
            log.write(words.rstrip() + "\n")

    def _refuse_to_wait_for_ever(self, now: float) -> None:
        """Ray itself would wait without a word."""
        engines = [worker.is_placed for worker in self._workers if worker.role != PREPARE]
        preparers = [worker.is_placed for worker in self._workers if worker.role == PREPARE]
        short = self._patience.look(now, engines, preparers)
        if short is not None:
            raise EngineError(
                f"{short} on the Ray cluster; {self._scarce()}",
                "Others use it, or no node comes: look at `ray status`. Lower run.ray.min_replicas "
                "or raise run.ray.place_timeout_s; the same command goes on where this one ended.",
            )

    def _scarce(self) -> str:
        """What an engine takes, and what nobody has taken."""
        free = free_resources(self._ray)
        each = self._each("infer")
        left = {name: free.get(name, 0.0) for name in {"GPU": 0, "CPU": 0} | each}
        return f"an engine takes {listed(each)}; free now: {listed(left)}"

    def _needs(self) -> list[Need]:
        return [
            Need("engines", self._wanted.least_engines, self._each("infer")),
            Need("preparing processes", min(1, self._wanted.preparers), self._each(PREPARE)),
        ]

    def _each(self, role: str) -> dict[str, float]:
        """Resources of one worker, by Ray's names."""
        if role == PREPARE:
            return {"CPU": self._cluster.cpus_per_prepare}
        return engine_resources(self._cluster, self._gpus)


def too_small(needs: Sequence[Need], nodes: Sequence[Node]) -> JobError | None:
    """The error for a cluster on which Ray would wait for ever; None if there is room."""
    shortage = missing(needs, nodes)
    if shortage is None:
        return None
    return JobError(f"the Ray cluster is too small: {shortage}", _TOO_SMALL_HINT)


def engine_resources(cluster: RayCluster, gpus: float) -> dict[str, float]:
    """Resources of one engine, by Ray's names."""
    each = {"GPU": gpus} if gpus else {}
    each["CPU"] = cluster.cpus_per_engine
    if cluster.accelerator is not None:
        each[f"accelerator_type:{cluster.accelerator}"] = 0.001
    return {**each, **cluster.engine_resources}


def resource_options(each: Mapping[str, float]) -> dict[str, Any]:
    """Resources as the options of an actor."""
    rest = {name: amount for name, amount in each.items() if name not in ("CPU", "GPU")}
    return {"num_cpus": each.get("CPU", 0), "num_gpus": each.get("GPU", 0), "resources": rest}
