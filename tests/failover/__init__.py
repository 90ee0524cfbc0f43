"""Two trackers with one journal, for tests of what happens when one of them is lost."""
