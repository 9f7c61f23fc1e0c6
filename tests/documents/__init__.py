"""The documents: every block of them is run, and what they show is what happens."""
