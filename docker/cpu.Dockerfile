# ampgnn on the CPU. `snakemake images` builds it; by hand: docker build -t ampgnn:cpu -f docker/cpu.Dockerfile .
# Docker's BuildKit, its classic builder and buildah all build it. The stages up to `project` are those of
# cuda.Dockerfile, so that builders share their layers.
ARG BASE_IMAGE=python:3.11-slim-bookworm

# Python 3.11, a compiler and what builds wheels. Where the system has no Python 3.11, uv brings one to /opt/python.
FROM ${BASE_IMAGE} AS python
ENV UV_PYTHON_INSTALL_DIR=/opt/python
# hadolint ignore=DL3008,SC2046
RUN apt-get update && apt-get install -y --no-install-recommends \
      ca-certificates g++ $(command -v python3 >/dev/null || echo python3 python3-venv) && rm -rf /var/lib/apt/lists/*
COPY envs/build.lock /src/
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --require-hashes -r /src/build.lock \
 && mkdir -p /opt/python && /opt/uv/bin/uv venv --no-cache --python 3.11 /opt/build \
 && /opt/uv/bin/uv pip sync --no-cache --require-hashes --python /opt/build/bin/python /src/build.lock
ENV PATH=/opt/build/bin:$PATH

# Native kernels and the package, as wheels.
FROM python AS wheels
WORKDIR /src
COPY kernels kernels
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels ./kernels
COPY pyproject.toml LICENSE ./
COPY ampgnn ampgnn
# The README is named by pyproject.toml and not needed here: a change of it shall not change the image.
RUN touch README.md && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

# Everything that the package needs, without what nothing runs.
FROM python AS environment
ARG LOCK=cpu.lock
COPY envs/${LOCK} docker/slim.sh /src/
# uv knows PyTorch's index of CPU wheels by the name "cpu". Empty: no more than the indexes that are set up.
ARG TORCH_BACKEND=cpu
RUN uv venv --no-cache --python 3.11 /opt/venv \
 && uv pip sync --no-cache --require-hashes --compile-bytecode --python /opt/venv/bin/python \
      ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} "/src/${LOCK}" \
 && sh /src/slim.sh /opt/venv/lib/python3.11/site-packages \
 && echo /opt/project > /opt/venv/lib/python3.11/site-packages/project.pth

# A layer of its own, so that a change of the sources changes no more than that.
FROM environment AS project
COPY --from=wheels /wheels /wheels
RUN uv pip install --no-cache --no-deps --compile-bytecode --python /opt/venv/bin/python --target /opt/project /wheels/*.whl

FROM ${BASE_IMAGE} AS runtime
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends tini && apt-get clean && rm -rf /var/lib/apt/lists/* \
 && { id -u 1000 >/dev/null 2>&1 || useradd --uid 1000 --create-home ampgnn; }
COPY --from=python /opt/python /opt/python
COPY --from=environment /opt/venv /opt/venv
COPY --from=project /opt/project /opt/project
# Any user id may run it (`--user`): homes and caches lie in /tmp, the code belongs to root and is read-only.
ENV PATH=/opt/project/bin:/opt/venv/bin:$PATH \
    HOME=/tmp \
    USER=ampgnn \
    XDG_CACHE_HOME=/tmp/.cache \
    MPLCONFIGDIR=/tmp/.cache/matplotlib \
    TORCHINDUCTOR_CACHE_DIR=/tmp/.cache/inductor \
    MLFLOW_DISABLE_TELEMETRY=true \
    PYTHONUNBUFFERED=1
ARG GIT_COMMIT
ARG GIT_DIRTY
ARG IMAGE_TAG
ENV AMPGNN_GIT_COMMIT=${GIT_COMMIT} \
    AMPGNN_GIT_DIRTY=${GIT_DIRTY} \
    AMPGNN_IMAGE=${IMAGE_TAG}
LABEL org.opencontainers.image.title="ampgnn" \
      org.opencontainers.image.description="Mixed-precision training of graph neural networks, on the CPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${GIT_COMMIT}" \
      ampgnn.torch="2.13.0" \
      ampgnn.dgl="1.1.3"
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["tini", "-g", "--", "ampgnn"]
CMD ["--help"]
