"""A job on a cluster: rendered, checked, sent, watched and removed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from batchwright import pipeline
from batchwright.config.job import Job
from batchwright.core.errors import BatchwrightError, Forbidden, JobError, StorageError
from batchwright.core.records import Receipt
from batchwright.equip.choosing import with_engine
from batchwright.equip.elsewhere import check_elsewhere
from batchwright.k8s import preflight
from batchwright.k8s.client import Cluster
from batchwright.k8s.explain import PodState
from batchwright.k8s.pod import CONTAINER, JOB_LABEL
from batchwright.k8s.preflight import Doubt
from batchwright.k8s.problems import Manifest, Problem
from batchwright.k8s.reach import check_job
from batchwright.k8s.render import MAIN_KINDS, manifests
from batchwright.k8s.rules import problems_of
from batchwright.k8s.schema import schema_problems
from batchwright.k8s.standing import Standing, refuse_another, standing
from batchwright.k8s.workload import CONFIG_DIR, Workload, make_workload, object_name
from batchwright.plan.gpus import find_gpu
from batchwright.rundir.locations import Location
from batchwright.rundir.manifest import existing_run, run_if_there
from batchwright.rundir.state import Counts, read_state
from batchwright.rundir.storage import Storage

# The rate of a run is that of its last minutes: pods come and go.
RATE_WINDOW_S = 600.0

_KINDS = ("Job", "RayJob", "Deployment", "Service", "ConfigMap", "ResourceClaimTemplate")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunProgress:
    """What the run directory says; the cluster does not know it."""

    counts: Counts
    rows_per_s: float
    eta_s: float | None

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **self.counts.as_json(),
            "complete": self.counts.complete,
            "chunks": self.counts.chunks,
            "chunks_done": self.counts.chunks_done,
            "rows_per_s": round(self.rows_per_s, 3),
            "eta_s": self.eta_s,
        }


def render(
    job: Job, run_dir: Location, stop: threading.Event, say: Callable[[int], None]
) -> tuple[Workload, list[Manifest]]:
    """Every manifest of a job, checked.

    A plan is made of the job's rows only if it alone can tell how many cards an engine needs.

    Args:
        job: the resolved job.
        run_dir: where a pilot may have left its figures for the plan.
        stop: ends the counting of tokens early.
        say: is told now and then how many rows are counted.

    Raises:
        JobError: with the name of each field that would not work in pods.
    """
    check_job(job)
    check_elsewhere(job)
    parallel = _given_parallel(job) or _planned_parallel(job, run_dir, stop, say)
    job, files = _with_files(job)
    count = job.hardware.count // parallel if job.hardware.gpu else None
    workload = make_workload(
        job, parallel=parallel, replicas=count, card_bytes=_card_bytes(job), files=files
    )
    found = manifests(workload)
    refuse(check(found, job.kubernetes.version))
    return workload, found


def check(found: Sequence[Manifest], version: str) -> list[Problem]:
    """What schemas and rules say against manifests, ours or others."""
    return [*schema_problems(found, version), *problems_of(found)]


def refuse(problems: Sequence[Problem]) -> None:
    """Raise JobError if there are any."""
    if problems:
        lines = "\n  ".join(map(str, problems))
        raise JobError(f"the manifests are not right:\n  {lines}")


def _given_parallel(job: Job) -> int | None:
    """Cards that one engine spans, where no plan is needed to know it."""
    options, settings = job.engine.options, job.kubernetes
    if {"tensor_parallel_size", "pipeline_parallel_size"} & set(options):
        return int(options.get("tensor_parallel_size", 1)) * int(
            options.get("pipeline_parallel_size", 1)
        )
    # `auto` is vLLM for answers; for vectors either engine takes one card.
    if job.engine.kind not in ("vllm", "auto") or job.task != "generate" or settings.hami:
        return 1
    return settings.gpus


def _planned_parallel(
    job: Job, run_dir: Location, stop: threading.Event, say: Callable[[int], None]
) -> int:
    if not job.hardware.gpu:
        raise JobError(
            "hardware.gpu is missing: how many cards an engine needs is not known",
            "Name the cards (hardware.gpu: H100, hardware.count: 8) and the plan finds out, or "
            "give kubernetes.gpus, the cards of each pod.",
        )
    chosen, _ = pipeline.plan(with_engine(job)[0], stop, say, sample=None, run_dir=run_dir)
    return int(chosen.value("tensor_parallel_size")) * int(chosen.value("pipeline_parallel_size"))


def _card_bytes(job: Job) -> int | None:
    """Memory of a card by the names that the job file has for it."""
    if job.hardware.gpu:
        return find_gpu(job.hardware.gpu).memory_bytes
    settings, found = job.kubernetes, []
    for name in {
        *settings.gpu_products,
        *(one for group in settings.groups for one in group.gpu_products),
    }:
        try:
            found.append(find_gpu(name).memory_bytes)
        except JobError:  # a label of the cluster's own; then the memory has to be given
            return None
    return max(found, default=None)


def _with_files(job: Job) -> tuple[Job, dict[str, str]]:
    """A chat template that is a file here travels in the ConfigMap."""
    path = Path(job.model.chat_template or "")
    if not job.model.chat_template or not path.is_file():
        return job, {}
    name = "chat_template.jinja"
    model = job.model.model_copy(update={"chat_template": f"{CONFIG_DIR}/{name}"})
    return job.model_copy(update={"model": model}), {name: path.read_text(encoding="utf-8")}


# --- sending ------------------------------------------------------------------------------------


def doubts(
    cluster: Cluster, workload: Workload, found: Sequence[Manifest], job: Job, run_dir: Location
) -> list[Doubt]:
    """What speaks against sending a job, by what the cluster and the run directory let us see."""
    pods = preflight.needed(found)
    doubtful: list[Doubt] = preflight.budget_doubts(job, lambda: run_if_there(run_dir) is not None)

    def look(what: str, see: Callable[[], Iterable[Doubt]]) -> None:
        try:
            doubtful.extend(see())
        except Forbidden as error:
            doubtful.append(Doubt(f"{what} cannot be looked at: {error.message}", blocks=False))

    if _missing(cluster, "Namespace", cluster.namespace):
        return [Doubt(f"kubernetes.namespace: there is no {cluster.namespace}", blocks=True)]
    look(
        "the quota",
        lambda: preflight.quota_doubts(
            pods, cluster.find("ResourceQuota"), workload.settings.priority_class
        ),
    )
    look("the nodes", lambda: preflight.node_doubts(workload, cluster.find("Node")))
    for kind, name, field in preflight.referenced(workload):
        if _missing(cluster, kind, name):
            doubtful.append(Doubt(f"kubernetes.{field}: there is no {kind} {name}", blocks=True))
    for volume in workload.settings.all_volumes:
        if volume.claim:
            look(
                f"the claim {volume.claim}",
                partial(preflight.volume_doubts, volume, cluster.get, workload.pods),
            )
    return doubtful


def _missing(cluster: Cluster, kind: str, name: str) -> bool:
    """Whether an object is certainly not there; many accounts may not look at Secrets or nodes."""
    try:
        return not cluster.has(kind, name)
    except Forbidden:
        return False


def submit(cluster: Cluster, found: Sequence[Manifest], job: Job) -> list[str]:
    """Create every object, or none.

    The server is asked first whether it would take each. What the Job needs is there before it,
    and belongs to it afterwards: when the Job goes, all goes.

    Returns:
        `Job/reviews` for each object, in order.

    Raises:
        JobError: the server refuses one; those that were made already are removed again.
    """
    _mains(cluster, job)  # refuses if another job has the name
    for manifest in found:
        cluster.create(manifest, dry_run=True)
    made: list[Manifest] = []
    try:
        for manifest in sorted(found, key=lambda one: one["kind"] in MAIN_KINDS):
            made.append({**manifest, "metadata": cluster.create(manifest)["metadata"]})
    except BatchwrightError:
        for manifest in reversed(made):
            cluster.delete(manifest["kind"], manifest["metadata"]["name"])
        raise
    mains = [one for one in made if one["kind"] in MAIN_KINDS]
    for manifest in made:
        if manifest["kind"] not in MAIN_KINDS:
            cluster.own(manifest["kind"], manifest["metadata"]["name"], mains)
    return [f"{one['kind']}/{one['metadata']['name']}" for one in made]


def delete(cluster: Cluster, job: Job) -> list[str]:
    """Remove all objects of a job; JobError if another has its name. The run directory stays."""
    found = []
    _mains(cluster, job)  # refuses if another job has the name
    for kind in _KINDS:
        for one in cluster.find(kind, _selector(job)):
            name = one["metadata"]["name"]
            if cluster.delete(kind, name):
                found.append(f"{kind}/{name}")
    return found


# --- looking ------------------------------------------------------------------------------------


def look(cluster: Cluster, job: Job) -> Standing:
    """How the job stands in the cluster. Raises JobError if there is none."""
    mains = _mains(cluster, job)
    pods = cluster.find("Pod", _selector(job))
    if not mains and not pods:
        raise JobError(
            f"there is no job {object_name(job)} in the namespace {cluster.namespace}",
            "It was never sent, or it is finished and kubernetes.ttl_s is over.",
        )
    return standing(mains, pods, cluster.find("Event"))


def _mains(cluster: Cluster, job: Job) -> list[Manifest]:
    """What carries the job. Raises JobError if another job has its name."""
    mains = [
        {**one, "kind": kind} for kind in MAIN_KINDS for one in cluster.find(kind, _selector(job))
    ]
    refuse_another(mains, job.run.dir.replace("{name}", job.name))
    return mains


def run_progress(run_dir: Location) -> tuple[RunProgress | None, str]:
    """Rows done, rate and time left by the run directory; or None, and why it cannot be said."""
    try:
        storage, _ = existing_run(run_dir)
        return _progress(storage), ""
    except (JobError, StorageError) as error:
        return None, f"not known from here, or not begun: {error.message}"


def _progress(storage: Storage) -> RunProgress:
    state = read_state(storage)
    counts = state.counts()
    rate = recent_rate(list(state.receipts.values()), time.time())
    left = counts.rows - counts.done
    known = counts.ordered and rate and not counts.complete
    return RunProgress(counts, rate, left / rate if known else None)


def recent_rate(receipts: Sequence[Receipt], now: float) -> float:
    """Rows per second over the last minutes; 0 if nothing was committed in them."""
    recent = [one for one in receipts if now - RATE_WINDOW_S <= one.finished_at <= now]
    if not recent:
        return 0.0
    started_at = min(one.finished_at - one.seconds for one in recent)
    return sum(one.rows for one in recent) / max(now - started_at, 1.0)


def logs(
    cluster: Cluster,
    job: Job,
    write: Say,
    *,
    pod: str | None = None,
    index: int | None = None,
    tail: int | None = None,
    follow: bool = False,
) -> int:
    """Write the lines of the job's pods, each with the pod's name if there are several.

    Returns:
        How many pods were read.
    """
    chosen = [one for one in look(cluster, job).pods if _is_wanted(one, pod, index)]
    if not chosen:
        raise JobError("no such pod", "`batchwright k8s status` lists them.")

    def read(one: PodState) -> None:
        head = f"{one.name}: " if len(chosen) > 1 else ""
        if one.state == "pending":
            write(f"{head}(no log yet: {one.why or 'pending'})")
            return
        try:
            for line in cluster.log(one.name, container=CONTAINER, tail=tail, follow=follow):
                write(f"{head}{line}")
        except BatchwrightError as error:  # one pod that is gone must not hide the others
            write(f"{head}(no log: {error.message})")

    if not follow:
        for one in chosen:
            read(one)
        return len(chosen)
    threads = [threading.Thread(target=read, args=(one,), daemon=True) for one in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(chosen)


def _is_wanted(one: PodState, pod: str | None, index: int | None) -> bool:
    return (pod is None or one.name == pod) and (index is None or one.index == index)


def _selector(job: Job) -> str:
    return f"{JOB_LABEL}={object_name(job)}"


def cluster_of(job: Job) -> Cluster:
    """The cluster and namespace that the job file names."""
    return Cluster(job.kubernetes.context, job.kubernetes.namespace)
