"""Who may ask what."""
