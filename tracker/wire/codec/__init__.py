"""The one codec: from the contract's values to the wire's messages and back, for servers and clients.

What one end writes the other end reads, so both directions of a message stand side by side: `jobs` (specifications,
how a job, its producers and its drain stand), `status` (how substreams and subscriptions stand), `events`, `promises`
and `reports`. `commands` reads requests as the core's commands; clients write theirs where they make the call.
`fields` has what all of them need.

Nothing here decides anything: whether a command is valid in the job's state is the core's decision.
"""

from .commands import Method, read_command
from .events import read_ended, read_event, write_bookmark, write_ended, write_event
from .fields import parse, write_length
from .jobs import (
    names_of,
    read_drain_status,
    read_job_defined,
    read_job_status,
    write_drain_mode,
    write_drain_status,
    write_job_defined,
    write_job_spec,
    write_job_status,
    write_mode,
    write_opened,
)
from .promises import write_promises
from .reports import read_large_report, read_report, read_reported, write_report, write_reported
from .status import (
    read_explained,
    read_server_info,
    read_subscription,
    read_substream,
    write_explained,
    write_subscribed,
    write_subscription,
    write_substream,
)

__all__ = [
    "Method",
    "names_of",
    "parse",
    "read_command",
    "read_drain_status",
    "read_ended",
    "read_event",
    "read_explained",
    "read_job_defined",
    "read_job_status",
    "read_large_report",
    "read_report",
    "read_reported",
    "read_server_info",
    "read_subscription",
    "read_substream",
    "write_bookmark",
    "write_drain_mode",
    "write_drain_status",
    "write_ended",
    "write_event",
    "write_explained",
    "write_job_defined",
    "write_job_spec",
    "write_job_status",
    "write_length",
    "write_mode",
    "write_opened",
    "write_promises",
    "write_report",
    "write_reported",
    "write_subscribed",
    "write_subscription",
    "write_substream",
]
