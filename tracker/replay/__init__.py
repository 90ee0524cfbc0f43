"""A dry run over history: which promise would have been right for these rows, and how soon.

Rows that have a time and an arrival are given to promises as Spark would have read them, and every promise is judged
against all rows that came. No tracker runs, and no query changes. `history` has the rows and the rules by which they
come in batches, `promises` one class a promise, `judging` the figures and the advice: all three are pure. `reading`
reads files, and `report` draws.
"""
