"""Examples that run: small programs to learn from."""
