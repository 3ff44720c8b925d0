"""The base of all other packages: errors, files, signals, child processes, hardware."""
