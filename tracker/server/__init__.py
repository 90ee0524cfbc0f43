"""The tracker as a gRPC service: from the wire to commands and back, one at a time through the journal to the core."""
