"""What every other package stands on: errors, files, signals, child processes, hardware."""
