"""Every call of the contract with every scope: what is not allowed is refused, and all else is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from tests.client.conftest import spec
from tests.security.secured import Secured
from tracker.client import TrackerError
from tracker.security.identities import NEEDED, Scope, with_included
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

METHODS: list[MethodDescriptor] = list(wire.DESCRIPTOR.services_by_name["Tracker"].methods)
_ABOUT_NO_JOB = {"GetServerInfo", "ListJobs"}
_ABOUT_ALL_JOBS = {"Backup", "MoveLeader"}
_REFUSED = {"PERMISSION_DENIED", "UNAUTHENTICATED"}


@pytest.fixture(scope="module")
def tokens(shared: Secured) -> dict[str, Path]:
    """Return a token for each scope, and one for all of them on other jobs."""
    made = {scope.value: shared.add(f"only-{scope}", [scope.value]) for scope in Scope}
    made["elsewhere"] = shared.add_known("elsewhere", ["admin"], ("other-*",))
    return made


def outcome(shared: Secured, method: MethodDescriptor, token: str | None, job: str = "no-such-job") -> str:
    """Return the reason for which a call was refused, or its status."""
    request: Any = getattr(wire, method.input_type.name)()
    if method.name == "DefineJob":
        request.spec.job = job
    elif method.name not in _ABOUT_NO_JOB | _ABOUT_ALL_JOBS:
        request.job = job
    metadata = [("authorization", f"Bearer {token}")] if token else []
    credentials = grpc.ssl_channel_credentials(shared.authority.ca.read_bytes())
    with grpc.secure_channel(shared.address, credentials) as channel:
        call = getattr(TrackerStub(channel), method.name)
        given = iter([request]) if method.client_streaming else request
        try:
            answer = call(given, timeout=20, metadata=metadata)
            if method.server_streaming:
                answer = next(iter(answer))
        except grpc.RpcError as error:
            return str(error.code().name)
    return getattr(answer, "error_reason", "") or "OK"


def test_each_call_of_the_contract_has_its_scope() -> None:
    assert {method.name for method in METHODS} == set(NEEDED)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("scope", Scope)
def test_a_call_needs_its_scope(
    shared: Secured, tokens: dict[str, Path], method: MethodDescriptor, scope: Scope
) -> None:
    needed = NEEDED[method.name]
    allowed = needed is None or needed in with_included(frozenset({scope}))
    found = outcome(shared, method, tokens[scope.value].read_text().strip())
    assert (found not in _REFUSED) if allowed else (found == "PERMISSION_DENIED")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_call_is_refused_about_a_job_of_another_pattern(
    shared: Secured, tokens: dict[str, Path], method: MethodDescriptor
) -> None:
    found = outcome(shared, method, tokens["elsewhere"].read_text().strip())
    assert found == ("OK" if method.name in _ABOUT_NO_JOB else "PERMISSION_DENIED")
    found = outcome(shared, method, tokens["elsewhere"].read_text().strip(), "other-1")
    assert (found == "PERMISSION_DENIED") if method.name in _ABOUT_ALL_JOBS else (found not in _REFUSED)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("token", [None, "trk_unknown"], ids=["no token", "unknown token"])
def test_a_call_without_a_known_token_is_refused(shared: Secured, method: MethodDescriptor, token: str | None) -> None:
    assert outcome(shared, method, token) == "UNAUTHENTICATED"


def test_force_needs_more_than_to_define_a_job(shared: Secured, tokens: dict[str, Path]) -> None:
    client = shared.client(tokens["report"])
    assert client.define_job(spec("forced")).created
    with pytest.raises(TrackerError, match="needs the scope operate") as refused:
        client.define_job(spec("forced"), force=True)
    assert refused.value.reason == "PERMISSION_DENIED"


def test_jobs_of_other_patterns_are_not_listed(shared: Secured, tokens: dict[str, Path]) -> None:
    everything = shared.client(shared.all)
    for name in ("other-a", "mine-a"):
        everything.define_job(spec(name))
    assert {"other-a", "mine-a"} <= set(everything.jobs())
    assert shared.client(tokens["elsewhere"]).jobs() == ["other-a"]
