"""`tracker load`: drives a real tracker as many producers would, and checks every end that it announces.

Arrival is open-loop: what a report says and when it is due is planned before the first one is sent, and every latency
counts from the planned moment, however late the report could leave. It may import the client, never the server, the
journal or the core: a server that it starts is a process like any other.
"""
