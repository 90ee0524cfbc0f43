"""`tracker load`: drives a real tracker as many producers would, and checks every end that it announces.

The load is an open loop: the content of each report, and the moment when it is due, are planned before the first one is
sent. Every latency counts from the planned moment, however late the report could leave. This package may import the
client, but never the server, the journal or the core: a server that it starts is a separate process.
"""
