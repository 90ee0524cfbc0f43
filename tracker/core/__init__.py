"""The tracking state machine: pure, deterministic, without I/O, clock or threads."""
