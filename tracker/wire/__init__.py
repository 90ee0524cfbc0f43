"""What client and server share: the wire contract's stubs, the form of its columns, its constants, and the codec."""

from __future__ import annotations

#: `google.rpc.ErrorInfo.domain` of every refusal
ERROR_DOMAIN = "substream.tracker"

#: the metadata with which a client tells a relay which tracker a report is meant for
SERVER_KEY = "substream-tracker-server"
