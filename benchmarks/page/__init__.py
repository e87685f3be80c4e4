"""The page in a real browser: how soon it shows something, how fast it takes in changes, and its pictures."""
