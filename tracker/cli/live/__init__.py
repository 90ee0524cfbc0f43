"""Parts of `tracker top`: looks at a tracker, the user's choices, a drawing of both, and the terminal."""
