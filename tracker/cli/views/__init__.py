"""Views of the tracker's answers for people. A view is loaded when its command runs, since it needs the client."""
