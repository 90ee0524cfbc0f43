"""Real services for the demos and the tests: a Kafka broker, a PostgreSQL server. Each can be killed and comes back."""
