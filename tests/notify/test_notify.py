"""Ends are delivered at least once, in order, by a real process, whatever stops in between."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from standardwebhooks import Webhook as Verifier

from tests.client.conftest import spec
from tests.client.processes import Server
from tests.notify.receivers import Receiver, receiving
from tests.spark.waiting import soon
from tracker.client import TrackerClient
from tracker.notify import delivery
from tracker.notify.delivery import set_property
from tracker.notify.rules import Marker, Rule

SECRET = base64.b64encode(b"known to both").decode()


def ready(url: str) -> str:
    """Return the answer of `/readyz`."""
    try:
        return str(urllib.request.urlopen(f"{url}/readyz").read(), "utf-8")
    except urllib.error.HTTPError as refused:
        return str(refused.read(), "utf-8")


class Notifier:
    """`tracker notify` as a process of its own."""

    def __init__(self, directory: Path, server: str, *options: str) -> None:
        self._log = (directory / "notify.log").open("a+")
        command = [sys.executable, "-m", "tracker.cli.main", "notify", str(directory / "rules.toml"), *options]
        self.process = subprocess.Popen(
            [*command, "--server", server], stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        status = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return status


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def write_rules(directory: Path, job: str, receiver: Receiver, more: str = "") -> None:
    (directory / "hook.secret").write_text(f"whsec_{SECRET}\n")
    text = f"""
    [[rule]]
    name = "ends"
    job = "{job}"
    webhook = {{ url = "{receiver.url}", secret-file = "hook.secret" }}
    """
    (directory / "rules.toml").write_text(text + more)


def end(client: TrackerClient, job: str, *names: str) -> None:
    """End substreams, in this order."""
    producer = client.open_producer(job, "q", "-".join(names))
    for name in names:
        report = producer.epoch()
        report.close("JFK", name)
        report.report(commit=True)


def names(receiver: Receiver) -> list[str]:
    return [json.loads(each.body)["data"]["name"] for each in list(receiver.received)]


def test_ends_are_posted_signed_and_in_order(server: Server, tmp_path: Path, receiver: Receiver) -> None:
    client = TrackerClient(server.address)
    client.define_job(spec("flights"))
    write_rules(tmp_path, "flights", receiver)
    notifier = Notifier(tmp_path, server.address)
    assert notifier.line() == "notifying by 1 rules\n"
    end(client, "flights", "one", "two", "three")
    soon(lambda: len(receiver.received) == 3)
    assert names(receiver) == ["one", "two", "three"]
    for headers, body in receiver.received:
        message: Any = Verifier(SECRET).verify(body, headers)
        assert headers["webhook-id"] == message["id"]
        assert message["type"] == "substream.tracker.Ended"
        assert message["subject"] == f"raw/JFK/{message['data']['name']}"
        assert message["data"]["reason"] == "COMPLETE"
    assert notifier.end() == 0


def test_nothing_is_lost_while_receiver_tracker_or_process_is_away(
    server: Server, tmp_path: Path, receiver: Receiver
) -> None:
    client = TrackerClient(server.address)
    client.define_job(spec("flights"))
    write_rules(tmp_path, "flights", receiver)
    notifier = Notifier(tmp_path, server.address)
    notifier.line()
    refusals: list[tuple[int, dict[str, str]]] = [
        (500, {}),
        (302, {"location": receiver.url}),
        (429, {"retry-after": "0"}),
    ]
    receiver.answers = refusals * 1_000
    end(client, "flights", "one")
    soon(lambda: len(receiver.received) == 4)
    assert len({each.headers["webhook-id"] for each in receiver.received}) == 1, "a receiver can drop the copies"
    notifier.end(signal.SIGKILL)
    refused = len(receiver.received)
    receiver.answers.clear()
    end(client, "flights", "two")
    server.restart()
    notifier = Notifier(tmp_path, server.address)
    soon(lambda: len(receiver.received) == refused + 2)
    server.restart()
    end(client, "flights", "three")
    soon(lambda: len(receiver.received) == refused + 3)
    assert names(receiver) == ["one"] * refused + ["one", "two", "three"]
    soon(lambda: client.subscriptions("flights")[0].acknowledged == client.job("flights").last_seq)
    notifier.end()
    notifier = Notifier(tmp_path, server.address)
    end(client, "flights", "four")
    soon(lambda: len(receiver.received) > refused + 3)
    assert names(receiver)[-1] == "four", "what was acknowledged does not come again"
    notifier.end()


@pytest.mark.thorough
def test_a_rule_that_cannot_deliver_holds_up_no_other_and_is_seen(
    server: Server, tmp_path: Path, receiver: Receiver
) -> None:
    client = TrackerClient(server.address)
    client.define_job(spec("flights"))
    stuck = '[[rule]]\nname = "stuck"\njob = "flights"\nwebhook = { url = "http://127.0.0.1:9/" }\n'
    marker = f'[[rule]]\nname = "marker"\njob = "flights"\nmarker = "{tmp_path}/lake/{{scope}}/{{name}}/_SUCCESS"\n'
    write_rules(tmp_path, "flights", receiver, stuck + marker)
    notifier = Notifier(tmp_path, server.address, "--metrics", "127.0.0.1:0")
    url = notifier.line().split()[-1]
    end(client, "flights", "one", "../../two")
    soon(lambda: len(receiver.received) == 2)
    written = [tmp_path / "lake/JFK/one/_SUCCESS", tmp_path / "lake/JFK/..%2F..%2Ftwo/_SUCCESS"]
    soon(lambda: all(file.exists() for file in written))
    assert json.loads(written[0].read_text())["data"]["elements"] == 0

    soon(lambda: "rule stuck: http://127.0.0.1:9/" in ready(url))
    counts = str(urllib.request.urlopen(f"{url}/metrics").read(), "utf-8")
    assert 'tracker_notify_failing{rule="stuck"} 1.0' in counts
    assert 'tracker_notify_deliveries_total{rule="marker"} 2.0' in counts

    write_rules(tmp_path, "flights", receiver, marker)  # without the one that is stuck
    soon(lambda: ready(url) == "ready\n")
    (tmp_path / "rules.toml").write_text("[[rule]]")
    soon(lambda: "name is missing" in ready(url))
    end(client, "flights", "three")
    soon(lambda: (tmp_path / "lake/JFK/three/_SUCCESS").exists())  # the rules before it are at work
    assert notifier.end() == 0


@pytest.mark.thorough
def test_a_delta_table_has_what_is_complete_of_it_as_a_property(server: Server, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    client = TrackerClient(server.address)
    client.define_job(spec("flights"))
    (tmp_path / "rules.toml").write_text(
        '[[rule]]\nname = "table"\njob = "flights"\n'
        f'delta = {{ table = "{lake}", property = "complete.{{scope}}", value = "{{name}}" }}\n'
    )
    notifier = Notifier(tmp_path, server.address, "--metrics", "127.0.0.1:0")
    url = notifier.line().split()[-1]
    end(client, "flights", "monday")

    soon(lambda: "rule table:" in ready(url))  # there is no such table yet: nothing is lost by that
    write_deltalake(lake, pa.table({"flights": [1]}))
    soon(lambda: DeltaTable(lake).metadata().configuration == {"complete.JFK": "monday"})
    end(client, "flights", "tuesday")
    soon(lambda: DeltaTable(lake).metadata().configuration == {"complete.JFK": "tuesday"})
    assert notifier.end() == 0
    assert DeltaTable(lake).version() == 2
    set_property(str(lake), "complete.JFK", "tuesday")
    assert DeltaTable(lake).version() == 2, "an event that is delivered again makes no commit"


def test_a_file_that_is_wrong_ends_the_start(server: Server, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("[[rule]]\n")
    notifier = Notifier(tmp_path, server.address, "--check")
    assert notifier.process.wait() == 2
    notifier.end()
    assert "rule 1: name is missing" in (tmp_path / "notify.log").read_text()


def test_what_does_not_concern_a_rule_is_acknowledged_too(
    client: TrackerClient, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its subscription would keep these events, and expire after a month."""
    monkeypatch.setattr(delivery, "_PASSED_EVERY_S", 0)
    client.define_job(spec(job))
    rule = Rule("late", job, ("Late",), marker=Marker(str(tmp_path), "{name}"))
    late = delivery.Delivery(rule, client, lambda: None, lambda problem: None)
    late.start()
    end(client, job, "one", "two")

    def acknowledged() -> bool:
        late.acknowledge_passed()
        return [each.acknowledged for each in client.subscriptions(job)] == [client.job(job).last_seq]

    soon(acknowledged)
    late.stop()
    late.join(60)
    assert list(tmp_path.iterdir()) == []
