"""Runs the chunks of prepared runs on vLLM's pooling engine, all in one process.

    python -m tests.support.pooling_worker RUN...

vLLM is imported once for all of them: started anew for each model, it would take minutes.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from batchwright.config.job import Job
from batchwright.engines.feeder import Supervisor
from batchwright.engines.vllm_pooling import VllmPoolingEngine
from batchwright.equip.equipment import engine_settings, job_tokenizer
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.manifest import existing_run
from batchwright.worker import Worker


def work(run_dir: Path) -> None:
    storage, manifest = existing_run(run_dir)
    job = Job.model_validate(manifest.job)
    tokenizer = job_tokenizer(job)
    clock = SystemClock()
    settings = engine_settings(manifest, job, tokenizer)
    supervisor = Supervisor(
        VllmPoolingEngine, settings, row_timeout_s=60, monotonic=clock.monotonic
    )
    Worker(storage, job, "w", clock, supervisor, tokenizer).run(threading.Event())


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        work(Path(argument))
