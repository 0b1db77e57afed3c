"""Price plans: their versions, and the files that they are written in."""
