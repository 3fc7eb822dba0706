# recover on a GPU machine: torch and vLLM bring their own CUDA libraries, the host brings the driver.
#   docker build -t recover .
#   docker run --rm --gpus all --shm-size 8g -v recover-data:/data recover doctor
# Without a GPU: docker build --build-arg EXTRAS=postgres -t recover .
# Packages from elsewhere: --build-arg PIP_INDEX_URL (a mirror), --build-arg PIP_EXTRA_INDEX_URL (one beside it).

FROM python:3.11-slim-bookworm AS dependencies
ARG EXTRAS=vllm,postgres
# pip reads them from the environment.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/recover/bin:$PATH
RUN python -m venv /opt/recover
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
# Only the dependency list is here yet, so this layer (the large one) is built again only when it changes.
RUN pip install --constraint requirements.lock ".[${EXTRAS}]" && pip uninstall --yes recover-llm

FROM dependencies AS wheel
COPY . .
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim-bookworm
# Triton compiles its kernel launchers with a C compiler when a model first runs.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home recover \
    && install --directory --owner recover --group recover /data
COPY --from=dependencies /opt/recover /opt/recover
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    /opt/recover/bin/pip install --no-cache-dir --no-deps /wheels/*.whl
ENV PATH=/opt/recover/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RECOVER_HOME=/data \
    HF_HOME=/data/huggingface \
    XDG_CACHE_HOME=/data/cache \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001
WORKDIR /data
VOLUME /data
ENTRYPOINT ["recover"]
CMD ["--help"]
