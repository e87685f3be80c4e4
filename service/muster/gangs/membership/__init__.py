"""Which pods belong to which gang."""
