"""One file, one named constraint, each with `add(variables)`; build.py lists them."""
