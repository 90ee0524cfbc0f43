"""The command line: `tracker.cli.main` has the entry point, and each other module some of its subcommands."""
