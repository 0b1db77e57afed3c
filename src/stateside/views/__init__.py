"""Views: catalogue, aggregates, rollups, computed columns, savepoints, and inference from a foreign checkpoint."""
