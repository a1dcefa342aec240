# Build: the wheel and its pinned dependencies, into one prefix.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY requirements.txt pyproject.toml README.md LICENSE ./
COPY sidecar sidecar
RUN pip install --no-cache-dir --require-hashes --prefix=/install -r requirements.txt \
    && pip install --no-cache-dir --no-deps --prefix=/install .

# Run: no compiler, no build tree, no root.
FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="sidecar" \
      org.opencontainers.image.description="Routing sidecar for vLLM pods: peer-to-peer KV pulls and prefill/decode handoff" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /install /usr/local
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 8000
ENTRYPOINT ["sidecar"]
