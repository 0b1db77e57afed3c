"""Operations: the doctor, restore of savepoints, readers that hold back retention, and the project template."""
