"""The status page: jobs, their segments, and why each open substream is open, live in a browser.

A Starlette application (`application`) of plain HTML, CSS and ES modules (`static/`), without a build step.
It reads what it shows from a `Source` (`source`), which the server gives it, and asks an `Access` before it shows
anything of a job. `documents` turns states into JSON whose size is bounded; `feed` does so once for all
browsers that look at the same job.
"""
