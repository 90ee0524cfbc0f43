"""Users' objects: `Tracking`, tracked streams and their writers."""
