"""Constraints between pods, resolved against all pods on nodes."""
