"""What Spark keeps to itself: its plans, its checkpoints, its texts. No other room uses a private interface of Spark.

Each module states what it relies on, and how it fails where a release of Spark has that otherwise: *closed*, so that
nothing is taken for certain that is not known, at a price or with a refusal; or *open*, so that it goes on without.
"""
