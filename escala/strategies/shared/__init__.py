"""Code shared by strategies: knobs, the place of a process, factored gradients, servers."""
