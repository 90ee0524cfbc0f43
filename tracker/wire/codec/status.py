"""Status of substreams, of subscriptions and of the answering server."""

from __future__ import annotations

from tracker.contract.answers import Subscribed
from tracker.contract.status import (
    Explained,
    SegmentStatus,
    ServerInfo,
    StagedCount,
    StagedStatus,
    SubscriptionStatus,
    SubstreamStatus,
)
from tracker.wire.gen import tracker_pb2 as wire

from .fields import count, optional, read_time, read_time_if_any, write_duration, write_time, write_time_if_any
from .jobs import read_mode

# ---------------------------------------------------------------- substreams


def write_substream(substream: SubstreamStatus) -> wire.SubstreamStatus:
    return wire.SubstreamStatus(
        scope=substream.scope,
        name=substream.name,
        end_time=substream.end_time,
        closed=substream.closed,
        waiting_for=substream.waiting_for,
        segments=[
            wire.SegmentStatus(
                segment=segment.segment,
                ended=segment.ended,
                xor=segment.xor,
                sent=segment.sent,
                received=segment.received,
                last_sender=segment.last_sender,
                last_receiver=segment.last_receiver,
                expected=None if segment.expected is None else count(segment.expected),
                expected_by=segment.expected_by,
                closed=segment.closed,
                by_drain=segment.by_drain,
            )
            for segment in substream.segments
        ],
        late_reports=substream.late_reports,
        created=write_time(substream.created_ns),
        changed=write_time(substream.changed_ns),
        held_by=substream.held_by,
        by_drain=substream.by_drain,
    )


def read_substream(message: wire.SubstreamStatus) -> SubstreamStatus:
    return SubstreamStatus(
        scope=message.scope,
        name=message.name,
        end_time=optional(message, "end_time"),
        closed=message.closed,
        waiting_for=tuple(message.waiting_for),
        segments=tuple(
            SegmentStatus(
                segment=segment.segment,
                ended=segment.ended,
                xor=segment.xor,
                sent=segment.sent,
                received=segment.received,
                last_sender=segment.last_sender,
                last_receiver=segment.last_receiver,
                expected=optional(segment, "expected"),
                expected_by=dict(segment.expected_by),
                closed=segment.closed,
                by_drain=segment.by_drain,
            )
            for segment in message.segments
        ),
        late_reports=message.late_reports,
        created_ns=read_time(message.created),
        changed_ns=read_time(message.changed),
        held_by=tuple(message.held_by),
        by_drain=message.by_drain,
    )


def write_explained(explained: Explained) -> wire.ExplainResponse:
    return wire.ExplainResponse(
        substream=None if explained.substream is None else write_substream(explained.substream),
        staged=[
            wire.StagedStatus(
                producer=staged.producer,
                epoch=staged.epoch,
                mode=wire.Mode.ValueType(staged.mode.number),
                sealed=staged.sealed,
                segments=[
                    wire.StagedCount(segment=each.segment, sent=each.sent, received=each.received)
                    for each in staged.segments
                ],
                closed_by=staged.closed_by,
                expected_by=staged.expected_by,
            )
            for staged in explained.staged
        ],
        earlier=map(write_substream, explained.earlier),
        earlier_count=explained.earlier_count,
    )


def read_explained(message: wire.ExplainResponse) -> Explained:
    return Explained(
        substream=read_substream(message.substream) if message.HasField("substream") else None,
        staged=tuple(
            StagedStatus(
                staged.producer,
                staged.epoch,
                read_mode(staged.mode),
                staged.sealed,
                tuple(StagedCount(each.segment, each.sent, each.received) for each in staged.segments),
                tuple(staged.closed_by),
                tuple(staged.expected_by),
            )
            for staged in message.staged
        ),
        earlier=tuple(map(read_substream, message.earlier)),
        earlier_count=message.earlier_count,
    )


# ---------------------------------------------------------------- subscriptions


def write_subscribed(answer: Subscribed) -> wire.SubscribeResponse:
    return wire.SubscribeResponse(
        acknowledged=answer.acknowledged, last_seq=answer.last_seq, log_id=answer.log_id, created=answer.created
    )


def write_subscription(subscription: SubscriptionStatus) -> wire.SubscriptionStatus:
    return wire.SubscriptionStatus(
        name=subscription.name,
        segments=subscription.segments,
        scopes=subscription.scopes,
        acknowledged=subscription.acknowledged,
        max_age=write_duration(subscription.max_age_ns),
        max_events=subscription.max_events,
        retained=subscription.retained,
        oldest_retained=write_time_if_any(subscription.oldest_retained_ns),
        created=write_time(subscription.created_ns),
        last_ack=write_time_if_any(subscription.last_ack_ns),
        expired=write_time_if_any(subscription.expired_ns),
        expired_because=subscription.expired_because,
    )


def read_subscription(message: wire.SubscriptionStatus) -> SubscriptionStatus:
    return SubscriptionStatus(
        name=message.name,
        segments=tuple(message.segments),
        scopes=tuple(message.scopes),
        acknowledged=message.acknowledged,
        max_age_ns=read_time(message.max_age),
        max_events=message.max_events,
        retained=message.retained,
        oldest_retained_ns=read_time_if_any(message, "oldest_retained"),
        created_ns=read_time(message.created),
        last_ack_ns=read_time_if_any(message, "last_ack"),
        expired_ns=read_time_if_any(message, "expired"),
        expired_because=message.expired_because,
    )


# ---------------------------------------------------------------- servers


def read_server_info(message: wire.ServerInfo) -> ServerInfo:
    return ServerInfo(
        version=message.version,
        journal=message.journal,
        leader=message.leader,
        limits=dict(message.limits),
        instance=message.instance,
        features=tuple(message.features),
    )
