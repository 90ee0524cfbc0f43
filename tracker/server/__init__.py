"""The tracker as a gRPC service: it reads commands, journals them, has the core carry them out, and answers."""
