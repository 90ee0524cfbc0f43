"""Flights over Kafka into PostgreSQL, with a loop for what fails, while everything is killed: `make demo-kafka`."""
