"""HTTP beside gRPC: metrics for Prometheus, health for supervisors, and pages that others mount.

The application (`application`) knows nothing of trackers: whoever runs it gives it functions, routes and middleware.
It is served by the event loop of its process (`listening`), which also keeps that process's signals.
"""
