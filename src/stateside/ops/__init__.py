"""Operations: doctor, advice on settings, restore of savepoints, readers that hold back retention, project template."""
