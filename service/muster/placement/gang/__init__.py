"""One gang on this cluster: blocks of like members, what binds them, where some run, what a node takes."""
