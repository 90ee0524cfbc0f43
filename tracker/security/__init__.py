"""Access to a server: transport security, tokens, and what each client may do with which jobs.

`settings` reads what an operator asks for, `guard` identifies callers, and `scopes` lists what each call needs. The
server and the relay use it; a client needs only `tracker.client.credentials`.
"""
