"""Rating: the plan version of an event, and whether the event counts."""
