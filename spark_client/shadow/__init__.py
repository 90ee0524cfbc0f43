"""Before a job is tracked: a dry run over its history, and shadow mode, beside a job that is only read."""
