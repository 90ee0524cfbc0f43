"""For all tests: what hypothesis tries has no deadline, since no test depends on the speed of a machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
