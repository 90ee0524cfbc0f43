"""The relay: workers of a node report to it, and it combines many reports into one.

It keeps no state that callers could not send again. Only the tracker decides about a report; the relay delays some
reports for a moment, adds them up, and gives each caller its share of the answer. It imports the client's modules for
the wire format and for refusals, and never the server, its journal or its core.
"""
