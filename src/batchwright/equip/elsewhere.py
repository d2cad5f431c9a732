"""A job that other machines run: what would be refused there is refused here, without their cards."""

from __future__ import annotations

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.equip.coherence import check_task

# Stands for an address that the other machines have in their environment.
_ADDRESS = "http://endpoint.invalid/v1"


def check_elsewhere(job: Job) -> None:
    """Refuse settings that no machine would take: they need neither the model nor the data.

    Raises:
        JobError: as the run itself would, after it had waited for its place.
    """
    if job.engine.kind != "fake" and not job.model.name:
        raise JobError("no model is given", "Name one: model.name in the job file.")
    if job.engine.kind == "openai" and "base_url" not in job.engine.options:
        options = {**job.engine.options, "base_url": _ADDRESS}
        job = job.model_copy(update={"engine": job.engine.model_copy(update={"options": options})})
    check_task(job)
