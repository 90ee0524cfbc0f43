"""What users hold: `Tracking`, tracked streams and their writers."""
