"""Flights in a lake: queries over Spark Connect that keep everything in an object store, and write into tables."""
