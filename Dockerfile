# syntax=docker/dockerfile:1
# kquota's image. `docker build .` makes the sidecar, `docker build --target analysis .` the Spark jobs.
#
# The base has the Python and the Debian that the tests run on. For a build that can be repeated bit by bit, name it by
# digest: --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:…
# Every package is pinned and checked against a committed SHA-256 sum (deploy/image/*.txt); none is compiled.
# Only kquota's own wheel is, in a stage of its own: the data path (modules of quota and proxy).
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# --- the wheel of this checkout, the only stage with a compiler
FROM ${PYTHON_IMAGE} AS wheel
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libssl-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY deploy/image/build.txt deploy/image/build.txt
RUN python3 -m venv /opt/build \
    && /opt/build/bin/python -m pip install --no-cache-dir --only-binary :all: --require-hashes -r deploy/image/build.txt
COPY . .
# KQUOTA_PURE=0: no wheel without the compiled data path.
RUN KQUOTA_PURE=0 /opt/build/bin/python -m pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /dist .

# --- the sidecar's environment: what it needs to run and nothing else, not even pip
FROM ${PYTHON_IMAGE} AS environment
COPY deploy/image/sidecar.txt /lock/
RUN python3 -m venv --without-pip /opt/kquota \
    && python3 -m pip --python /opt/kquota/bin/python install --no-cache-dir --only-binary :all: --require-hashes \
       -r /lock/sidecar.txt
COPY --from=wheel /dist/ /dist/
RUN python3 -m pip --python /opt/kquota/bin/python install --no-cache-dir --no-index --no-deps /dist/kquota-*.whl \
    && mkdir /state

# --- the Spark jobs: the same wheel with pyspark, and a Java to run it
FROM ${PYTHON_IMAGE} AS analysis
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    # Hadoop's login, which Spark begins with, fails for a uid without a name
    && echo 'kquota:x:65532:65532:kquota:/tmp:/usr/sbin/nologin' >> /etc/passwd
COPY deploy/image/build.txt deploy/image/analysis.txt /lock/
# pyspark is published as source only; it is Python and jars, so that nothing is compiled here. Without build
# isolation, what packs it is pinned as well.
RUN python3 -m venv /opt/kquota \
    && /opt/kquota/bin/python -m pip install --no-cache-dir --only-binary :all: --require-hashes -r /lock/build.txt \
    && /opt/kquota/bin/python -m pip install --no-cache-dir --no-build-isolation --require-hashes -r /lock/analysis.txt
COPY --from=wheel /dist/ /dist/
RUN /opt/kquota/bin/python -m pip install --no-cache-dir --no-index --no-deps /dist/kquota-*.whl
# Spark and matplotlib write to /tmp: mount a volume there if the root is read-only.
ENV PATH=/opt/kquota/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
# A report, or what Spark on Kubernetes asks for: driver, executor.
ENTRYPOINT ["python3", "-m", "analysis.container"]

# --- what sets redirect rules for transparent mode: the same program beside nft, for an init container with NET_ADMIN.
# The sidecar needs neither, so that its image stays without them.
FROM ${PYTHON_IMAGE} AS redirect
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends nftables \
    && rm -rf /var/lib/apt/lists/*
COPY --from=environment /opt/kquota/ /opt/kquota/
ENV PATH=/opt/kquota/bin:/usr/local/bin:/usr/sbin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
ENTRYPOINT ["kquota", "redirect"]
CMD ["show"]

# --- the sidecar
FROM ${PYTHON_IMAGE} AS kquota
LABEL org.opencontainers.image.title="kquota" \
      org.opencontainers.image.description="A transparent Kafka quota sidecar" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=environment /opt/kquota/ /opt/kquota/
# The one directory that kquota may want to write to (quota overlay, usage records): mount a volume there. The rest of the
# file system can be read-only.
COPY --from=environment --chown=65532:65532 /state/ /var/lib/kquota/
ENV PATH=/opt/kquota/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /var/lib/kquota
# 9092: bootstrap; 9404: metrics, probes and explain. One more port per broker, 19092 and up.
EXPOSE 9092 9404
ENTRYPOINT ["kquota"]
CMD ["run", "--config", "/etc/kquota/kquota.yaml"]
