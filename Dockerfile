# The tracker server. Build: docker build -t substream-tracker .
# Run:   docker run -p 7654:7654 -v tracker:/var/lib/tracker substream-tracker
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY tracker tracker
COPY spark_client spark_client
RUN python -m venv /opt/tracker \
 && PIP_CONSTRAINT=constraints.txt /opt/tracker/bin/pip install --no-cache-dir '.[server]'

FROM python:3.11-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/tracker --create-home tracker
COPY --from=build /opt/tracker /opt/tracker
USER tracker
ENV PATH=/opt/tracker/bin:$PATH PYTHONUNBUFFERED=1
VOLUME /var/lib/tracker
EXPOSE 7654
# It answers when it has recovered, which takes seconds for a large journal.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["tracker", "jobs", "--server", "127.0.0.1:7654"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tracker", "serve", "--listen", "0.0.0.0:7654", "--journal", "sqlite:/var/lib/tracker/tracker.db"]
