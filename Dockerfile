# The images, of one source. docs/howto/deploy.md leads through running them.
#   the tracker: its server, its relay and its command line:  docker build -t substream-tracker .
#   Spark with the tracker's client, for deploy/spark/job.py: docker build --target spark -t substream-tracker-spark .
# Check: python -m scripts.image_check   (builds them and runs them; the chapter "What was checked" says how)

# All stages are of one Debian, since the environments' Python is Debian's.
FROM debian:trixie-slim AS base
# The newest fixes of the release are wanted, so the packages have no versions.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 \
 && rm -rf /var/lib/apt/lists/*
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.version="0.2.0"

FROM base AS source
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3-pip python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# Libraries in the versions that are tested. Environments have no pip of their own.
ENV PIP_CONSTRAINT=/src/constraints.txt
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY tracker tracker
COPY spark_client spark_client

FROM source AS build
# Without the libraries' tests. `--build-arg EXTRAS=server,object-store,notify,fast` is for `serve --compiled`.
ARG EXTRAS=server,object-store,notify
RUN python3 -m venv --without-pip /opt/tracker \
 && python3 -m pip --python /opt/tracker/bin/python install --no-cache-dir ".[$EXTRAS]" \
 && find /opt/tracker -depth -type d -name tests -exec rm -r {} +

FROM source AS build-spark
RUN python3 -m venv --without-pip /opt/spark \
 && python3 -m pip --python /opt/spark/bin/python install --no-cache-dir '.[spark,metrics]'

FROM base AS spark
# Java's package links to manual pages, whose folder slim images lack.
# hadolint ignore=DL3008
RUN mkdir --parents /usr/share/man/man1 \
 && apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-21-jre-headless procps \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/spark /opt/spark
# The user of the relay, whose socket clients accept then; and of the job's volume.
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin --home-dir /var/lib/job tracker \
 && install --directory --owner=tracker --group=tracker --mode=0700 /var/lib/job
ENV PATH=/opt/spark/bin:$PATH \
    PYSPARK_PYTHON=/opt/spark/bin/python \
    SPARK_LOCAL_HOSTNAME=localhost \
    SPARK_LOCAL_DIRS=/var/lib/job/spark
LABEL org.opencontainers.image.title="Substream tracker: Spark with its client"
USER 10001:10001
WORKDIR /var/lib/job
VOLUME /var/lib/job
STOPSIGNAL SIGTERM
ENTRYPOINT ["python"]

# The last one is what is built if no other is asked for.
FROM base AS tracker
COPY --from=build /opt/tracker /opt/tracker
# The number is fixed, since volumes and security contexts name it.
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin --home-dir /var/lib/tracker tracker \
 && install --directory --owner=tracker --group=tracker --mode=0700 /var/lib/tracker \
 && install --directory --owner=tracker --group=tracker --mode=0755 /run/substream-tracker
# Beyond this machine, since the machine of a container is the container; an option or another value takes its place.
# So it starts only with TLS and clients, or with TRACKER_SERVE_INSECURE=true: docs/howto/security.md.
ENV PATH=/opt/tracker/bin:$PATH \
    TRACKER_SERVE_LISTEN=0.0.0.0:7654 \
    TRACKER_SERVE_METRICS=0.0.0.0:7660 \
    TRACKER_SERVE_JOURNAL=sqlite:/var/lib/tracker/tracker.db
LABEL org.opencontainers.image.title="Substream tracker"
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
