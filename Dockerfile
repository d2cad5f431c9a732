# batchwright with vLLM, for pods and for one machine.
#   docker build -t registry.example/team/batchwright:0.1.0 .
#   docker build -t registry.example/team/batchwright:0.1.0-ray --build-arg RAY_VERSION=2.60.0 .
# VLLM_IMAGE may be a copy in a registry of your own, best with its digest; batchwright is tested with
# vLLM 0.25 to 0.33.
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
RUN pip install --no-cache-dir build==1.3.0 hatchling==1.27.0
COPY pyproject.toml README.md LICENSE ./
COPY examples/reviews.jsonl examples/reviews.yaml examples/
COPY src src
RUN python -m build --wheel --no-isolation --outdir /dist

FROM ${VLLM_IMAGE}
ARG RAY_VERSION=""
ARG EXTRAS="http,media,audio"
# One layer, and only what vLLM's image lacks: pip leaves alone what is there and will do. The last
# line fails the build if something that vLLM needs was changed all the same. Ray needs `default`:
# without it there is no dashboard, which takes the jobs of KubeRay and answers its probes.
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    export PIP_BREAK_SYSTEM_PACKAGES=1 \
    && python3 -m pip install --no-cache-dir "$(echo /dist/*.whl)[${EXTRAS}]" \
       ${RAY_VERSION:+"ray[data,default]==${RAY_VERSION}"} \
    && mkdir --parents /home/batchwright \
    && chown 1000:1000 /home/batchwright \
    && batchwright --version \
    && python3 -c "import vllm"

ENV HOME=/home/batchwright \
    USER=batchwright \
    PYTHONUNBUFFERED=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    VLLM_NO_USAGE_STATS=1 \
    RAY_USAGE_STATS_ENABLED=0
WORKDIR /home/batchwright
# By number, so that a cluster can see that it is not root.
USER 1000:1000
ENTRYPOINT ["batchwright"]
CMD ["--help"]
