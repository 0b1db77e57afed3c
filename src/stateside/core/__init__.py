"""Core: the error tree, positions, clock, storage, layout of a folder and child processes; imports no other package."""
