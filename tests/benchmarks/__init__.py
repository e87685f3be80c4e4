"""Peers reproduce what their originals publish; figures are counted as they say."""
