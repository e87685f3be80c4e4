"""Devices of DRA drivers: what ResourceSlices offer on nodes, and what ResourceClaims ask for."""
