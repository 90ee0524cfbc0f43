"""Access to a server: transport security, tokens, and what each client may do with which jobs.

`guard` has what an operator asks for, and identifies callers; `identities` lists what each call needs, and `transport`
listens. The server and the relay use it; a client needs only `tracker.client.credentials`.
"""
