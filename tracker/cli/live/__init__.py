"""What `tracker top` is made of: looks at a tracker, the user's choices, a drawing of both, and the terminal."""
