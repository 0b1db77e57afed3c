"""Looking after what runs: diagnosis, inspection, savepoints, rescaling, standby, chaos, metrics."""
