"""The one codec: from the contract's values to the wire's messages and back, for servers and clients.

One end writes what the other end reads, so both directions of a message stand side by side: `values` (single fields,
whatever has the form of its message, specifications and events), and `reports` with their promises, which also reads
requests as the core's commands; clients write theirs where they make the call.

Nothing here decides anything: whether a command is valid in the job's state is the core's decision.
"""

from .reports import (
    Method,
    pack_i8,
    pack_u4,
    pack_u8,
    read_command,
    read_large_report,
    read_report,
    read_reported,
    unpack_i8,
    unpack_u4,
    unpack_u8,
    write_promises,
    write_report,
    write_reported,
)
from .values import (
    names_of,
    parse,
    read,
    read_duration,
    read_ended,
    read_event,
    write,
    write_bookmark,
    write_ended,
    write_event,
    write_events,
    write_job_spec,
    write_length,
    write_mode,
)

__all__ = [
    "Method",
    "names_of",
    "pack_i8",
    "pack_u4",
    "pack_u8",
    "parse",
    "read",
    "read_command",
    "read_duration",
    "read_ended",
    "read_event",
    "read_large_report",
    "read_report",
    "read_reported",
    "unpack_i8",
    "unpack_u4",
    "unpack_u8",
    "write",
    "write_bookmark",
    "write_ended",
    "write_event",
    "write_events",
    "write_job_spec",
    "write_length",
    "write_mode",
    "write_promises",
    "write_report",
    "write_reported",
]
