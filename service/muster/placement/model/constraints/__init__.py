"""What holds in every model: one file, one named constraint, each with `add`; build.py lists them."""
