"""Views as readers see them: rows out of a replica, in one snapshot, with the stamp of that snapshot."""
