"""Report numbers as tables, figures and sentences."""
