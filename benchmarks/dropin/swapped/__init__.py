"""The same scripts as in `original`, with our strategies."""
