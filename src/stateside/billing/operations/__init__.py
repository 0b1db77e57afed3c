"""Upkeep: what runs or is done beside the pipeline. Publication, the clock and its fees, delivery, replay."""
