"""Tests of backups: their form, the places where they are kept, and restoring them."""
