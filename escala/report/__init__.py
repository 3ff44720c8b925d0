"""From numbers to tables, figures and sentences."""
