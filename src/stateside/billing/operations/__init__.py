"""Operations beside the pipeline: publication, the clock and its fees, delivery, replay."""
