"""How answers of the tracker are shown to people. A view is loaded when its command runs, since it needs the client."""
