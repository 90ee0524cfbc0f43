"""The node-level agent: workers of a node report to it, and it makes one report of many.

It holds no state that matters. A report is the tracker's business from the first byte to the answer; the relay only
waits with some, adds them up, and gives each caller its share of the answer. It imports the client's knowledge of the
wire and of refusals, and never the server, its journal or its core.
"""
