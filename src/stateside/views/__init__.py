"""What a view is: its catalogue, aggregates, rollups, computed columns, and inference from a foreign checkpoint."""
