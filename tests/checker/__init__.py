"""Checks the tracker as a database is checked: clients work while all around them fails, and what they saw is judged.

docs/design/checker.md tells what is checked, and how to read a history.
"""
