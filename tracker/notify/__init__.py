"""Notices to others of a job's ends: webhooks and marker files, by rules, each event at least once.

A process of its own, `tracker notify`, reads events by durable subscriptions, one for each rule. It acknowledges an
event when it was delivered. So nothing is lost when it stops, when a receiver is away, or when the tracker restarts,
and a rule whose receiver is away holds no other rule up.

`rules` reads the file of rules and makes an event the message that a receiver gets, `delivery` runs one rule and sends
its messages, and `app` is the process, which runs all rules and reads a changed file again.
"""
