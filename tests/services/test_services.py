"""Messages of a producer count once they are committed, those of a consumer once its offsets are."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import pytest
from confluent_kafka.admin import AdminClient

from examples import kafka_service
from examples.services.kafka import Kafka
from tests.client.processes import Server
from tests.services.shop import Shop, create, nothing_comes, receive
from tracker.client import TrackerClient, TrackerError, TrackerUnavailable
from tracker.kafka import ProgressLostError

SMALL: dict[str, Any] = {"message.max.bytes": 2000}
IMPATIENT: dict[str, Any] = {"max.poll.interval.ms": 6000}
EPOCH = b'{"sender":"x","epoch":0}'
WAYS = pytest.mark.parametrize("way", ["transactions", "outbox"])


def outbox(way: str, path: Path) -> Path | None:
    return path / "outbox" if way == "outbox" else None


def only(shop: Shop, alone: bool = False) -> bytes | None:
    """Return the message that a consumer gets first, and commits, and check that no other one comes."""
    with shop.consumer() as mailer:
        (received,) = receive(mailer, 1)
        mailer.commit()
        assert not alone or nothing_comes(mailer)
    value: bytes | None = received.message.value()
    return value


@pytest.mark.thorough
@WAYS
def test_a_substream_ends_when_all_was_received(shop: Shop, way: str, tmp_path: Path) -> None:
    with shop.producer(outbox=outbox(way, tmp_path)) as till:
        for number in range(20):
            till.send(shop.topic, str(number), f"order {number}", scope="berlin", name="monday", identity=[number])
        token = till.commit()
        assert token is not None
        assert till.commit() is None
        till.close_substream("berlin", "monday")
    with shop.consumer() as mailer:
        received = receive(mailer, 19)
        mailer.commit()
        assert not shop.ended(), "one is in the topic yet"
        with pytest.raises(TimeoutError):
            shop.client.wait_for(token, timeout=0)
        received += receive(mailer, 1)
        assert not shop.ended(), "it was handed out, and its offset is not committed"
        mailer.commit()
    assert shop.client.wait_for(token, timeout=60).complete
    assert shop.ended() == {"monday": 20}
    assert Counter(each.message.value() for each in received) == Counter(f"order {n}".encode() for n in range(20))
    assert {each.element.sender for each in received if each.element} == {"till"}


def test_what_was_not_committed_comes_again(shop: Shop) -> None:
    with shop.producer() as till:
        for number in range(4):
            till.send(shop.topic, None, str(number), name="monday")
        till.close_substream("", "monday")
    with shop.consumer() as mailer:
        receive(mailer, 4)
    with shop.consumer() as mailer:
        receive(mailer, 4)
        mailer.commit()
    assert shop.ended() == {"monday": 4}
    with shop.consumer() as mailer:
        assert nothing_comes(mailer)


def test_an_aborted_epoch_was_never_sent(shop: Shop) -> None:
    till = shop.producer()
    till.send(shop.topic, "1", "wrong", name="monday")
    till.close_substream("", "monday")
    till.abort()
    till.send(shop.topic, "2", "right", name="monday")
    till.close_substream("", "monday")
    till.commit()
    till.close()
    with shop.consumer() as mailer:
        (received,) = receive(mailer, 1)
        mailer.commit()
        assert received.message.value() == b"right"
        assert nothing_comes(mailer)
    assert shop.ended() == {"monday": 1}


def test_an_epoch_that_kafka_refuses_is_sent_again_or_aborted(shop: Shop) -> None:
    till = shop.producer(**SMALL)
    till.send(shop.topic, "1", "small", name="monday")
    till.send(shop.topic, "2", "x" * 5000, name="monday")
    for _ in range(2):
        with pytest.raises(kafka.KafkaException, match="MSG_SIZE_TOO_LARGE"):
            till.commit()
    with pytest.raises(RuntimeError, match=r"call commit\(\) again, or abort\(\)"):
        till.send(shop.topic, "3", "another", name="monday")
    till.abort()
    till.send(shop.topic, "2", "shorter", name="monday")
    till.close_substream("", "monday")
    till.commit()
    till.close()
    assert only(shop) == b"shorter"
    assert shop.ended() == {"monday": 1}


@WAYS
def test_an_epoch_that_the_tracker_refuses_is_aborted(shop: Shop, way: str, tmp_path: Path) -> None:
    till = shop.producer(outbox=outbox(way, tmp_path))
    till.send(shop.topic, "1", "1", name="m" * 513)
    for _ in range(2):
        with pytest.raises(TrackerError, match="MALFORMED"):
            till.commit()
    till.abort()
    till.send(shop.topic, "2", "2", name="monday")
    till.close_substream("", "monday")
    till.commit()
    till.close()
    assert only(shop) == b"2"
    assert shop.ended() == {"monday": 1}


def test_a_producer_that_was_superseded_counts_no_more(shop: Shop) -> None:
    zombie = shop.producer()
    zombie.send(shop.topic, "1", "of the zombie", name="monday")
    till = shop.producer()
    with pytest.raises(TrackerError, match="FENCED"):
        zombie.commit()
    till.send(shop.topic, "1", "of its successor", name="monday")
    till.close_substream("", "monday")
    till.commit()
    assert only(shop, alone=True) == b"of its successor"
    assert shop.ended() == {"monday": 1}


def test_a_producer_that_was_superseded_in_its_transaction_is_fenced_by_kafka(shop: Shop) -> None:
    zombie = shop.producer()
    zombie.send(shop.topic, "1", "of the zombie", name="monday")
    produce, successors = zombie._produce, []

    def paused() -> None:
        produce()
        successors.append(shop.producer())

    zombie._produce = paused  # type: ignore[method-assign]
    with pytest.raises(kafka.KafkaException, match="FENCED"):
        zombie.commit()
    (till,) = successors
    till.send(shop.topic, "1", "of its successor", name="monday")
    till.close_substream("", "monday")
    till.commit()
    assert only(shop, alone=True) == b"of its successor"
    assert shop.ended() == {"monday": 1}


def test_a_producer_that_was_superseded_revokes_nothing_when_it_aborts(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = shop.producer(**SMALL)
    zombie.send(shop.topic, "1", "x" * 5000, name="monday")
    with pytest.raises(kafka.KafkaException, match="MSG_SIZE_TOO_LARGE"):
        zombie.commit()
    till = shop.producer()
    till.send(shop.topic, "1", "of its successor", name="monday")
    with monkeypatch.context() as away:
        away.setattr(type(till._run), "commit", lambda *_: (_ for _ in ()).throw(TrackerUnavailable("no answer")))
        with pytest.raises(TrackerUnavailable):
            till.commit()  # Kafka has it, and the tracker has it staged
    zombie.abort()
    zombie.close_substream("", "monday")
    zombie.commit()
    with pytest.raises(TrackerError, match="FENCED"):
        till.commit()
    assert only(shop) == b"of its successor"
    assert shop.ended() == {"monday": 1}


@pytest.mark.thorough
def test_a_member_that_the_group_has_given_up_counts_nothing(shop: Shop) -> None:
    with shop.producer() as till:
        for number in range(20):
            till.send(shop.topic, str(number), str(number), name="monday")
        till.close_substream("", "monday")
    with shop.consumer(**IMPATIENT) as zombie:
        receive(zombie, 5)  # and polls no more
        with shop.consumer() as mailer:
            receive(mailer, 20)
            with pytest.raises((TrackerError, kafka.KafkaException), match=r"FENCED|UNKNOWN_MEMBER_ID"):
                zombie.commit()
            assert not shop.ended()
            mailer.commit()
            assert shop.ended() == {"monday": 20}
            assert nothing_comes(mailer)


def test_messages_of_others_are_handed_out_untracked(shop: Shop) -> None:
    poison: list[Any] = [
        None,
        [],
        [("tracker", b"{")],
        [("tracker", b"{}"), ("tracker-epoch", b"{}")],
        [("tracker", b'{"scope":"","name":"monday"}'), ("tracker-epoch", b'{"sender":"x","epoch":0}')],
        [("tracker", b"\xff"), ("tracker-epoch", None)],
        *(
            [("tracker", json.dumps({"scope": scope, "name": name, "label": 1}).encode()), ("tracker-epoch", EPOCH)]
            for scope, name in [("", ""), ("*", "monday"), ("", "m" * 513), (7, "monday"), ("", "\ud800")]
        ),
        [("traceparent", b"00"), ("tracker", b'{"scope":"","name":"monday","label":1}')],
    ]
    plain = shop.plain()
    for number, headers in enumerate(poison):
        plain.produce(shop.topic, f"poison {number}", "no label", headers=headers)
    plain.flush()
    with shop.producer() as till:
        till.send(shop.topic, "1", "ours", name="monday")
        till.close_substream("", "monday")
    with shop.consumer() as mailer:
        received = receive(mailer, len(poison) + 1)
        mailer.commit()
    assert [each.message.value() for each in received if each.element] == [b"ours"]
    assert len([each for each in received if each.element is None]) == len(poison)
    assert shop.ended() == {"monday": 1}


def test_copies_are_skipped_also_by_the_next_owner_of_a_partition(shop: Shop) -> None:
    with shop.producer() as till:
        for number in range(6):
            till.send(shop.topic, str(number), str(number), name="monday")
        till.commit()
        till.send(shop.topic, "6", "6", name="monday")
    with shop.consumer() as mailer:
        first = receive(mailer, 3)
        mailer.commit()
    copies = kafka.Consumer({"bootstrap.servers": shop.servers, "group.id": shop.job, "auto.offset.reset": "earliest"})
    copies.subscribe([shop.topic])
    plain, found = shop.plain(), 0
    while found < 7:
        if (message := copies.poll(0.2)) is not None:
            plain.produce(shop.topic, message.value(), message.key(), message.partition(), headers=message.headers())  # type: ignore[arg-type]
            found += 1
    copies.close()
    plain.flush()
    with shop.consumer() as mailer:
        rest = receive(mailer, 4)
        assert nothing_comes(mailer)
        mailer.commit()
    assert Counter(each.message.value() for each in first + rest) == Counter(str(n).encode() for n in range(7))
    with shop.producer() as till:
        till.close_substream("", "monday")
    assert shop.ended() == {"monday": 7}


def test_members_of_a_group_count_each_message_once_while_it_rebalances(shop: Shop) -> None:
    with shop.producer() as till:
        for number in range(40):
            till.send(shop.topic, str(number), str(number), name="monday")
        till.close_substream("", "monday")
    with shop.consumer() as one:
        seen = [each.message.value() for each in receive(one, 10)]
        one.commit()
        seen += [each.message.value() for each in receive(one, 5)]  # and is about to commit, when the other one joins
        with shop.consumer() as other:
            owners = set()
            until = time.monotonic() + 60
            while not shop.ended() and time.monotonic() < until:
                for member in (one, other):
                    received = member.poll(0.05)
                    if received is None:
                        continue
                    seen.append(received.message.value())
                    if not other._partitions:
                        continue  # one holds back its commits until the other one has joined
                    owners.add(member)
                    try:
                        member.commit()
                    except kafka.KafkaException:  # the group rebalances: it comes again
                        continue
    assert shop.ended() == {"monday": 40}
    assert len({*seen}) == 40
    assert owners == {one, other}


@pytest.mark.thorough
def test_services_wait_for_a_tracker_that_is_away(tmp_path: Path, broker: Kafka, topic: str) -> None:
    server = Server(tmp_path)
    with TrackerClient(server.address) as client:
        shop = Shop(client, "away", broker.servers, topic)
        with shop.producer() as till, shop.consumer() as mailer:
            till.send(topic, "1", "1", name="monday")
            till.close_substream("", "monday")
            server.kill()
            threading.Timer(1.5, server.start).start()
            till.commit()
            receive(mailer, 1)
            server.freeze()
            threading.Timer(1.5, server.thaw).start()
            mailer.commit()
        assert shop.ended() == {"monday": 1}
    server.stop()


def test_a_group_whose_offsets_are_gone_is_refused(shop: Shop) -> None:
    with shop.producer() as till:
        till.send(shop.topic, "1", "1", name="monday")
    with shop.consumer() as mailer:
        receive(mailer, 1)
        mailer.commit()
        group = mailer.group
    admin = AdminClient({"bootstrap.servers": shop.servers})
    for each in admin.delete_consumer_groups([group, f"tracker.{shop.job}.till"]).values():
        each.result()
    with shop.consumer() as mailer, pytest.raises(ProgressLostError, match="Give the consumer a new group"):
        receive(mailer, 1)
    with shop.producer() as till:  # nothing of it was under way, so nothing hangs on its mark
        till.close_substream("", "monday")
    assert shop.ended() == {"monday": 1}


def test_an_epoch_that_was_sent_can_only_be_committed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    till = shop.producer()
    till.send(shop.topic, "1", "1", name="monday")
    till.close_substream("", "monday")
    with monkeypatch.context() as away:
        away.setattr(type(till._run), "commit", lambda *_: (_ for _ in ()).throw(TrackerUnavailable("no answer")))
        with pytest.raises(TrackerUnavailable):
            till.commit()
    with pytest.raises(RuntimeError, match=r"call commit\(\) again$"):
        till.abort()
    till.commit()
    with shop.consumer() as mailer:
        receive(mailer, 1)
        mailer.commit()
        assert nothing_comes(mailer)
    assert shop.ended() == {"monday": 1}


def test_the_example_prints_what_has_arrived(
    tracker: Server, broker: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    create(broker, "orders")
    kafka_service.main(tracker.address, broker.servers)
    assert capsys.readouterr().out.splitlines() == [
        "monday: all 30 orders have arrived",
        "tuesday: all 20 orders have arrived",
    ]


def test_what_the_services_set_themselves_is_refused(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'acks', which the producer sets itself: leave it out"):
        shop.producer(acks="1")
    with pytest.raises(ValueError, match=r"'isolation.level', which the consumer sets itself: leave it out"):
        shop.consumer(**{"isolation.level": "read_uncommitted"})
    with shop.producer(outbox=tmp_path / "outbox") as till:
        with pytest.raises(ValueError, match="another process uses the outbox"):
            shop.producer(outbox=tmp_path / "outbox")
        with pytest.raises(ValueError, match="topic 'other' has no segment"):
            till.send("other", None, None, name="monday")
        till.send(shop.topic, None, None, name="monday", identity=[1])
        with pytest.raises(ValueError, match="send each once"):
            till.send(shop.topic, None, None, name="monday", identity=[1])
        till.abort()
