"""Code of client and server alike: the wire contract's stubs, the form of its columns, its constants, and the codec."""

from __future__ import annotations

#: `google.rpc.ErrorInfo.domain` of every refusal
ERROR_DOMAIN = "substream.tracker"

#: the metadata that names, for a relay, the tracker that a report is meant for
SERVER_KEY = "substream-tracker-server"

#: the feature of a server that can hand a deployment over: `ServerInfo.features`
HAND_OVER = "hand-over"

#: the feature of a server that keeps what is not committed from bringing an end, where a job demands it
COMMITTED_ENDS = "committed-ends"

#: the feature of a server that knows a deadline, a threshold and silent scopes
UNPROMISED = "ends-without-promise"

#: the feature of a server that compares the identities of elements with those that a front has promised
IDENTITIES = "identities"
