"""Mistakes of a job file that matter only to pods: paths they cannot see, settings that clash."""

from __future__ import annotations

from collections.abc import Iterator

from batchwright.config.job import Job
from batchwright.config.kubernetes import Kubernetes, Volume
from batchwright.core.errors import JobError

_TO_SHARE = (
    "Use a bucket (s3://, gs://, az://), or a path below a volume of kubernetes.volumes that all "
    "pods share: a claim with the access mode ReadWriteMany, or a host_path with shared: true."
)
_TO_READ = "Use a bucket, or a path below a volume of kubernetes.volumes."


def check_job(job: Job) -> None:
    """Refuse what would fail in the pods.

    Raises:
        JobError: with one line for each mistake, which begins with the field's name.
    """
    problems = [*_settings(job), *_paths(job)]
    if problems:
        hints = list(dict.fromkeys(hint for _, hint in problems if hint))
        raise JobError("\n".join(message for message, _ in problems), "\n  ".join(hints))


Found = Iterator[tuple[str, str]]


def _settings(job: Job) -> Found:
    settings = job.kubernetes
    if not settings.image:
        yield "kubernetes.image is missing", "Build one with the Dockerfile, and push it."
    elif not _is_pinned(settings.image):
        yield (
            f"kubernetes.image: {settings.image} has no tag of its own: pods that start later "
            "would run another version",
            "Name a version: registry.example/batchwright:0.1.0, or a digest.",
        )
    if settings.mode == "job" and (job.run.engines_per_gpu or 1) > 1:
        yield (
            "run.engines_per_gpu: a pod of an Indexed Job runs one engine",
            "For several engines on a card use kubernetes.hami.",
        )
    if settings.mode == "job" and job.run.executor == "ray":
        yield (
            "run.executor: ray: the pods of an Indexed Job use no Ray",
            "Use kubernetes.mode: ray, or leave run.executor out.",
        )
    if settings.gpus and job.engine.kind == "openai":
        yield "kubernetes.gpus: an endpoint's clients use no card", "Leave it out, or set it to 0."
    if settings.mode == "ray-deployment" and settings.queue:
        yield (
            "kubernetes.queue: Kueue cannot admit Deployments and a Job as one",
            "Use mode: job or mode: ray.",
        )
    if settings.mode != "job" and settings.name and not settings.name[0].isalpha():
        yield (
            f"kubernetes.name: {settings.name}: a RayJob and a Service begin with a letter",
            "Give another name, or leave it out: then one is made of the job's name.",
        )
    if settings.hami and settings.gpus == 0:
        yield "kubernetes.hami: kubernetes.gpus is 0", ""
    yield from _queue(settings)


def _queue(settings: Kubernetes) -> Found:
    if settings.queue_priority and not settings.queue:
        yield "kubernetes.queue_priority: there is no kubernetes.queue", ""
    if settings.queue and settings.mode == "ray" and len(settings.groups) > 7:
        yield "kubernetes.groups: Kueue admits at most 7 groups of a RayJob", ""
    least = settings.min_replicas or any(group.min_replicas for group in settings.groups)
    most = settings.max_replicas or any(group.max_replicas for group in settings.groups)
    if least and not most and not (settings.queue and settings.mode == "job"):
        yield (
            "kubernetes.min_replicas: it needs max_replicas (mode: ray) or queue (mode: job)",
            "",
        )


def _is_pinned(image: str) -> bool:
    if "@sha256:" in image:
        return True
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return bool(colon) and tag != "latest"


def _paths(job: Job) -> Found:
    volumes = job.kubernetes.all_volumes
    run_dir = job.run.dir
    if not _is_shared(run_dir, volumes):
        yield f"run.dir: pods cannot share {run_dir}", _TO_SHARE
    if job.output.path and not _is_shared(job.output.path, volumes):
        yield f"output.path: pods cannot share {job.output.path}", _TO_SHARE
    inputs = job.input.path if isinstance(job.input.path, list) else [job.input.path]
    for path in inputs:
        if not _is_seen(path, volumes):
            yield f"input.path: pods cannot see {path}", _TO_READ
    models = {"model.name": job.model.name, "model.tokenizer": job.model.tokenizer or ""}
    models |= {f"model.adapters.{name}": path for name, path in job.model.adapters.items()}
    for name, path in models.items():
        if path.startswith(("/", ".", "~")) and not _is_seen(path, volumes):
            yield (
                f"{name}: pods cannot see {path}",
                "Use a hub id, or a folder below a volume of kubernetes.volumes.",
            )


def _is_shared(path: str, volumes: list[Volume]) -> bool:
    return "://" in path or any(
        volume.takes_writes_of_all for volume in volumes if _is_below(path, volume)
    )


def _is_seen(path: str, volumes: list[Volume]) -> bool:
    return "://" in path or any(_is_below(path, volume) for volume in volumes)


def _is_below(path: str, volume: Volume) -> bool:
    return (path + "/").startswith(volume.path + "/")
