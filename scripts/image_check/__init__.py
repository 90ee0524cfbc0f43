"""`python -m scripts.image_check`: builds the images by the Dockerfile's own steps, and runs them."""
