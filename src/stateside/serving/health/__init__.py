"""The health of a server: readiness, status, metrics, logs and traces."""
