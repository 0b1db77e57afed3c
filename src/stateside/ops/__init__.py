"""Looking after what runs: the doctor, and the demo, which runs everything and proves that it adds up."""
