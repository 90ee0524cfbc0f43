# The tracker: its server, its relay and its command line. docs/deploy.md leads through running it.
# Build: docker build -t substream-tracker .
# Check: make image-check   (builds it and runs it; the chapter "What was checked" says how)

# Both stages are of one Debian, since the environment's Python is Debian's.
FROM debian:trixie-slim AS base
# The newest fixes of the release are wanted, so the packages have no versions.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 \
 && rm -rf /var/lib/apt/lists/*

FROM base AS build
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3-pip python3-venv
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY tracker tracker
COPY spark_client spark_client
# Libraries in the versions that are tested. The environment has no pip of its own, nor the libraries' tests.
RUN python3 -m venv --without-pip /opt/tracker \
 && PIP_CONSTRAINT=/src/constraints.txt python3 -m pip --python /opt/tracker/bin/python install --no-cache-dir '.[server]' \
 && find /opt/tracker -depth -type d -name tests -exec rm -r {} +

FROM base
COPY --from=build /opt/tracker /opt/tracker
# The number is fixed, since volumes and security contexts name it.
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin --home-dir /var/lib/tracker tracker \
 && install --directory --owner=tracker --group=tracker --mode=0700 /var/lib/tracker \
 && install --directory --owner=tracker --group=tracker --mode=0755 /run/substream-tracker
# Beyond this machine, since the machine of a container is the container; an option or another value takes its place.
# So it starts only with TLS and clients, or with TRACKER_SERVE_INSECURE=true: docs/security.md.
ENV PATH=/opt/tracker/bin:$PATH \
    TRACKER_SERVE_LISTEN=0.0.0.0:7654 \
    TRACKER_SERVE_METRICS=0.0.0.0:7660 \
    TRACKER_SERVE_JOURNAL=sqlite:/var/lib/tracker/tracker.db \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.title="Substream tracker"
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.version="0.1.0"
USER 10001:10001
WORKDIR /var/lib/tracker
VOLUME /var/lib/tracker
# gRPC; health and metrics by HTTP.
EXPOSE 7654 7660
# It fails while the server recovers, which takes seconds for a large journal, and while the journal refuses.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-m", "tracker.web.probe", "127.0.0.1:7660"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tracker"]
CMD ["serve"]
