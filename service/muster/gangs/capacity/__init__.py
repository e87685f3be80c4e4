"""The capacity that is taken on each node, the requests of gangs, and the conditions of refused gangs."""
