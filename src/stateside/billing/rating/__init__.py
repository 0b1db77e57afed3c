"""Rating: which version of a plan an event is for, and whether it counts."""
