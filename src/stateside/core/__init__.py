"""What every package may use: errors, positions, clock, storage, layout of a folder, child processes."""
