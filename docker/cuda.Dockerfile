# ampgnn on NVIDIA GPUs. `snakemake results/images/cuda.json` builds it; by hand:
# docker build -t ampgnn:cuda -f docker/cuda.Dockerfile .
# torch's wheels bring CUDA's libraries; the base brings the driver's settings, and the libraries for DGL_WHEEL.
ARG BASE_IMAGE=nvidia/cuda:13.0.2-runtime-ubuntu24.04

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
ARG LOCK=cuda.lock
COPY envs/${LOCK} docker/slim.sh /src/
# One of uv's names of PyTorch's indexes (cu130, ...). Empty: no more than the indexes that are set up, where torch is
# a CUDA build.
ARG TORCH_BACKEND=
RUN uv venv --no-cache --python 3.11 /opt/venv \
 && uv pip sync --no-cache --require-hashes --compile-bytecode --python /opt/venv/bin/python \
      ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} "/src/${LOCK}" \
 && sh /src/slim.sh /opt/venv/lib/python3.11/site-packages \
 && echo /opt/project > /opt/venv/lib/python3.11/site-packages/project.pth

# A layer of its own, so that a change of the sources changes no more than that.
FROM environment AS project
COPY --from=wheels /wheels /wheels
RUN uv pip install --no-cache --no-deps --compile-bytecode --python /opt/venv/bin/python --target /opt/project /wheels/*.whl

# What only a GPU needs. Triton compiles one C file, of its driver, at first use: done here, the image has no compiler.
FROM environment AS gpu
COPY docker/triton_driver.py /src/
RUN mkdir -p /opt/triton && TRITON_CACHE_DIR=/opt/triton /opt/venv/bin/python /src/triton_driver.py
# The address of one of DGL's own CUDA wheels, in place of the lock's dgl: for DGL's rows on a GPU. The newest is for
# torch 2.4 and CUDA 12.4, so LOCK and BASE_IMAGE have to fit as well.
ARG DGL_WHEEL=
RUN if [ -n "$DGL_WHEEL" ]; then uv pip install --no-cache --no-deps --python /opt/venv/bin/python "$DGL_WHEEL"; fi

FROM ${BASE_IMAGE} AS runtime
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends tini && apt-get clean && rm -rf /var/lib/apt/lists/* \
 && { id -u 1000 >/dev/null 2>&1 || useradd --uid 1000 --create-home ampgnn; }
COPY --from=python /opt/python /opt/python
COPY --from=gpu /opt/venv /opt/venv
COPY --from=gpu /opt/triton /opt/triton
COPY --from=project /opt/project /opt/project
RUN chmod 1777 /opt/triton
# Any user id may run it (`--user`): homes and caches lie in /tmp, the code belongs to root and is read-only.
ENV PATH=/opt/project/bin:/opt/venv/bin:$PATH \
    HOME=/tmp \
    USER=ampgnn \
    XDG_CACHE_HOME=/tmp/.cache \
    MPLCONFIGDIR=/tmp/.cache/matplotlib \
    TORCHINDUCTOR_CACHE_DIR=/tmp/.cache/inductor \
    TRITON_CACHE_DIR=/opt/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    MLFLOW_DISABLE_TELEMETRY=true \
    PYTHONUNBUFFERED=1
ARG GIT_COMMIT
ARG GIT_DIRTY
ARG IMAGE_TAG
ENV AMPGNN_GIT_COMMIT=${GIT_COMMIT} \
    AMPGNN_GIT_DIRTY=${GIT_DIRTY} \
    AMPGNN_IMAGE=${IMAGE_TAG}
LABEL org.opencontainers.image.title="ampgnn" \
      org.opencontainers.image.description="Mixed-precision training of graph neural networks, on NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${GIT_COMMIT}" \
      ampgnn.torch="2.13.0" \
      ampgnn.dgl="1.1.3"
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["tini", "-g", "--", "ampgnn"]
CMD ["--help"]
