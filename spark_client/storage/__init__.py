"""Small files that appear once, and directories that appear whole, on a file system that driver and executors share."""
