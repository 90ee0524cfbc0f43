"""A whole Spark job against a tracker with TLS and tokens: driver, executors' tasks and the source `tracker`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking, UsageError, register
from spark_client.datasource.options import credentials_of, options_of
from tests.security.secured import Secured
from tests.spark.feed import Feed, row, rows_of
from tracker.client import Credentials, TrackerClient
from tracker.client.credentials import TOKEN_VARIABLE, VARIABLES


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Yield a file that gets all that the JVM logs."""
    log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    context = log4j.LogManager.getContext(False)
    configuration = context.getConfiguration()
    layout = log4j.core.layout.PatternLayout.createDefaultLayout(configuration)
    builder = log4j.core.appender.FileAppender.newBuilder().setName("file").setLayout(layout)
    appender = builder.withFileName(str(tmp_path / "log")).build()
    appender.start()
    root = configuration.getRootLogger()
    root.addAppender(appender, None, None)
    spark.sparkContext.setLogLevel("DEBUG")
    yield tmp_path / "log"
    spark.sparkContext.setLogLevel("ERROR")
    root.removeAppender("file")
    appender.stop()


@pytest.mark.spark
def test_a_job_runs_with_tls_and_a_token_that_nothing_shows(
    spark: SparkSession, shared: Secured, job: str, tmp_path: Path, log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = shared.add_known("spark", ["report", "watch"], (job,))
    token = file.read_text().strip()
    feed = Feed(tmp_path / "raw")
    tracking = Tracking(spark, job, shared.address, probe="executors", credentials=shared.credentials(file))
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    sending = source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1").start()
    released = tracking.release(tracking.receive(channel), ["kind"], aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
    feed.put(row(1, 1), row(2, 2), row(3, 3, last=True))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "kind", "rows") == [("x", 3)]

    register(spark)
    files = options_of(shared.credentials(file))
    reader = spark.read.format("tracker").options(job=job, server=shared.address, **files)
    ended = reader.load().where("kind = 'Ended'")
    assert ended.count() > 0
    plans = [ended._jdf.queryExecution().toString(), str(sending.lastProgress)]
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert isinstance(tracking.client, TrackerClient)
    pickled = pickle.dumps((tracking.client, tracking.client.credentials))
    tracking.stop()
    printed = capfd.readouterr()
    for place in (*plans, printed.out, printed.err):
        assert token not in place
    for content in (*kept, pickled):
        assert token.encode() not in content
    assert log.stat().st_size > 100_000, "Spark's log is looked through"


@pytest.mark.spark
def test_a_token_as_an_option_is_refused_without_showing_it(spark: SparkSession) -> None:
    register(spark)
    with pytest.raises(Exception, match=r'write the token to a file.*\.option\("token_file"') as refused:
        spark.read.format("tracker").options(job="a", token="trk_secret").load().collect()
    assert "trk_secret" not in str(refused.value)


def test_options_are_the_files_of_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Credentials("/ca", "/cert", "/key", "/token")
    assert credentials_of(options_of(given)) == given
    assert credentials_of({"tls_ca": "/ca"}) == Credentials("/ca", token_variable=TOKEN_VARIABLE)
    with pytest.raises(UsageError, match="belong together"):
        credentials_of({"tls_cert": "/cert"})
    monkeypatch.setenv(VARIABLES["ca"], "/other")
    assert credentials_of({}).ca == "/other"
