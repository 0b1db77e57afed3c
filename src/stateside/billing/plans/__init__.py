"""Price plans: their versions, and the TOML files that define the versions."""
