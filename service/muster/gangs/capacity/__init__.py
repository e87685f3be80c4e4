"""What is taken of each node, what a gang requests, and what a refused gang must have to fit."""
