"""Muster: decides whole gangs of GPU pods at once, down to the GPU.

Imports go one way: app → adapters → gangs → placement → domain, and dialects → domain.
"""
