"""What several strategies use: knobs, the place of a process, factored gradients, servers."""
