"""What Spark keeps to itself: its plans, its checkpoints, its sources. Other rooms ask here."""
