"""Kinds of fronts, one file each: what is declared of it, and how it finds its promises while a query runs."""
