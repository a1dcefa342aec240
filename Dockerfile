# Build: the wheel and its pinned dependencies, into one prefix. .ci/image runs the same script.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY requirements.txt pyproject.toml README.md LICENSE ./
COPY deploy/image deploy/image
COPY sidecar sidecar
RUN deploy/image/install.sh /install

# Run: no compiler, no build tree, no root, nothing that has to be written.
FROM python:3.11-slim-bookworm
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sidecar" \
      org.opencontainers.image.description="Routing sidecar for vLLM pods: peer-to-peer KV pulls and prefill/decode handoff" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"
COPY --from=build /install /usr/local
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["python", "-m", "sidecar.health"]
ENTRYPOINT ["sidecar"]
