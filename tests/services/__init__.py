"""Python services before and after a pipeline, with a real broker and a real tracker."""
