"""Show decisions: as JSON (`report`), on a terminal (`pictures`), and as SVG (`svg`)."""
