"""What the response objects of a run have in common: ids, the time, the model's name."""

from __future__ import annotations

from collections.abc import Iterable

from batchwright.config.job import Job
from batchwright.core.ids import digest
from batchwright.core.records import Receipt
from batchwright.rundir.manifest import Manifest
from batchwright.tokens.ends import main_end_token
from batchwright.validate.envelope import CHAT, EMBEDDINGS
from batchwright.write.response_bodies import Responses

_ID_CHARS = 16


def responses_of(
    manifest: Manifest, job: Job, receipts: Iterable[Receipt], output_format: str
) -> Responses | None:
    """What the response objects of a run have in common; None for formats that have none.

    Everything follows from the run directory, so that each export writes the same bytes. The time
    is that of the first commit.
    """
    if output_format not in ("openai-batch", "vllm-batch"):
        return None
    own = Job.model_validate(manifest.job)
    times = [one.finished_at for one in receipts if one.generation == 0 and one.finished_at]
    return Responses(
        model=job.model.served_name or own.model.name,
        run_id=digest(manifest.fingerprint)[:_ID_CHARS],
        created=int(min(times, default=0)),
        as_vllm=output_format == "vllm-batch",
        end_token_id=main_end_token(own.model.tokenizer or own.model.name, own.model.revision),
        envelopes=manifest.format == "openai-batch",
        main_url=EMBEDDINGS if own.task == "embed" else CHAT,
    )
