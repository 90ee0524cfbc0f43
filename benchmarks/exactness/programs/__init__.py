"""Programs that run the queries on other engines, each in an environment of its own. They import none of the project.

They are called as `program WORKLOAD OUT OPTIONS`: a file of `Workload.write`; a file for results, a line of JSON each;
and JSON with `queries` and what the engine is configured with. Their output is shown.
"""
