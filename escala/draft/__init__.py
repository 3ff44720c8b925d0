"""Write an experiment for a user: on data of theirs, or on a program, which is tried before."""
