"""`make image-check`: builds the images by their Dockerfiles' own steps, and runs them."""
