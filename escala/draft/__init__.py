"""Write an experiment for a user: on data, or on a program. A program is tried first."""
